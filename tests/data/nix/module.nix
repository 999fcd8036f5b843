# The module's units with the values that contrib/systemd has, as JSON for a test to compare.
{ module }:
let
  lib = import ./lib.nix;
  evaluated = import module {
    inherit lib;
    pkgs.formats.json = _: {
      type = "json";
      generate = name: _: "/nix/store/${name}";
    };
    config.services.strata-router = {
      enable = true;
      package = "/opt/strata-router";
      configFile = "/etc/strata-router/config.json";
      settings = evaluated.config.services.strata-router.settings;
      profileDirectories = evaluated.options.services.strata-router.profileDirectories.default;
      deviceClasses = evaluated.options.services.strata-router.deviceClasses.default;
    };
  };
in
{
  settings = evaluated.config.services.strata-router.settings;
  generated = evaluated.options.services.strata-router.configFile.default;
  socket = evaluated.config.systemd.sockets.strata-router;
  service = evaluated.config.systemd.services.strata-router;
  account = evaluated.config.users;
}
