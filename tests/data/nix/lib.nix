# As much of nixpkgs' lib as the module and the flake use. Options are not checked or merged.
let
  lib = {
    mkIf = condition: value: if condition then value else { };
    mkDefault = value: value;
    mkOption = option: option;
    mkEnableOption = text: {
      default = false;
      description = text;
    };
    types = {
      package = "package";
      path = "path";
      str = "str";
      listOf = element: "list of ${element}";
    };
    genAttrs =
      names: make:
      builtins.listToAttrs (
        map (name: {
          inherit name;
          value = make name;
        }) names
      );
    cleanSource = path: path;
    licenses.mpl20 = "MPL-2.0";
    platforms.linux = [ "x86_64-linux" ];
  };
in
lib
