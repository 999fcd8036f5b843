# A stand-in for nixpkgs, for `nix flake check --override-input nixpkgs`: evaluates, builds nothing real.
{
  outputs =
    _:
    let
      lib = import ./lib.nix;
      toy =
        system: name: inputs:
        builtins.deepSeq inputs (derivation {
          inherit name system;
          builder = "/bin/sh";
          args = [
            "-c"
            "echo toy > $out"
          ];
        });
      pkgsFor =
        system:
        let
          pkgs = {
            inherit lib;
            stdenv.hostPlatform.system = system;
            python3 = toy system "python3" { };
            gnumake = toy system "gnumake" { };
            installShellFiles = toy system "installShellFiles" { };
            mkShell = shell: toy system "shell" shell.packages;
            # Only what is asked for and known: a misspelt package is an error, as in nixpkgs.
            python3Packages =
              lib.genAttrs [
                "flit-core"
                "trio"
                "h11"
                "httpx"
                "hypercorn"
                "quart-trio"
                "orjson"
                "pyyaml"
                "prometheus-client"
                "pytest"
                "hypothesis"
              ] (name: toy system name { })
              // {
                buildPythonApplication =
                  package:
                  toy system "${package.pname}-${package.version}" [
                    package.build-system
                    package.dependencies
                    package.nativeBuildInputs
                    package.nativeCheckInputs
                    package.meta
                  ];
              };
            callPackage =
              path: overrides:
              let
                function = import path;
              in
              function (builtins.intersectAttrs (builtins.functionArgs function) pkgs // overrides);
          };
        in
        pkgs;
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs [
        "x86_64-linux"
        "aarch64-linux"
      ] pkgsFor;
    };
}
