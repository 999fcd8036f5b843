{
  description = "strata-router: a daemon that owns one LLM engine process and lends it out fairly";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forEachSystem =
        make: nixpkgs.lib.genAttrs systems (system: make system nixpkgs.legacyPackages.${system});
    in
    {
      packages = forEachSystem (
        _: pkgs: {
          default = pkgs.callPackage ./contrib/nixos/package.nix { };
        }
      );

      # nix run . -- daemon /absolute/config.json
      apps = forEachSystem (
        system: _: {
          default = {
            type = "app";
            program = "${self.packages.${system}.default}/bin/strata-router";
          };
        }
      );

      # What `make test` assumes; the Python packages come from the lock files, with their hashes.
      devShells = forEachSystem (
        _: pkgs: {
          default = pkgs.mkShell {
            packages = [
              pkgs.python3
              pkgs.gnumake
            ];
          };
        }
      );

      # Building the package runs the tests of its pure half.
      checks = forEachSystem (
        system: _: {
          package = self.packages.${system}.default;
        }
      );

      nixosModules.default =
        { lib, pkgs, ... }:
        {
          imports = [ ./contrib/nixos/module.nix ];
          services.strata-router.package = lib.mkDefault self.packages.${pkgs.stdenv.hostPlatform.system}.default;
        };
    };
}
