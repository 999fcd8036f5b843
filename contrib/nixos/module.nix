# services.strata-router: the units of contrib/systemd, key by key (a test compares them), with the
# configuration written here and the account made.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  cfg = config.services.strata-router;
  json = pkgs.formats.json { };
in
{
  options.services.strata-router = {
    enable = lib.mkEnableOption "strata-router, one LLM engine lent out fairly";

    package = lib.mkOption {
      type = lib.types.package;
      description = "The package that provides bin/strata-router. The flake's module sets it.";
    };

    settings = lib.mkOption {
      type = json.type;
      default = { };
      description = ''
        The configuration, key by key as in docs/configuration.md. It becomes a file that every user
        of this machine can read; nothing secret belongs there.
      '';
    };

    configFile = lib.mkOption {
      type = lib.types.path;
      default = json.generate "strata-router.json" cfg.settings;
      defaultText = "the settings, as JSON";
      description = "The configuration file, where settings are not used. Its listen must be in settings too.";
    };

    profileDirectories = lib.mkOption {
      type = lib.types.listOf lib.types.str;
      default = [ "/opt/strata" ];
      description = "Folders of Strata profiles; Strata writes its log and shared settings beside them.";
    };

    deviceClasses = lib.mkOption {
      type = lib.types.listOf lib.types.str;
      default = [
        "char-nvidia"
        "char-nvidiactl"
        "char-nvidia-frontend"
        "char-nvidia-uvm"
        "char-nvidia-caps"
        "char-drm"
        "char-kfd"
      ];
      description = "Device classes that the engine may open, by their names in /proc/devices.";
    };
  };

  config = lib.mkIf cfg.enable {
    services.strata-router.settings = {
      listen = lib.mkDefault "127.0.0.1:8088";
      control_socket = lib.mkDefault "/run/strata-router/control.sock";
      require_socket_activation = lib.mkDefault true;
      wait_when_busy = lib.mkDefault true;
      response_ms = lib.mkDefault 0;
      drain_ms = lib.mkDefault 0;
    };

    environment.systemPackages = [ cfg.package ];

    users.users.strata-router = {
      isSystemUser = true;
      group = "strata-router";
      home = "/var/lib/strata-router";
    };
    users.groups.strata-router = { };

    systemd.sockets.strata-router = {
      description = "strata-router's API socket";
      wantedBy = [ "sockets.target" ];
      socketConfig = {
        ListenStream = cfg.settings.listen;
        FileDescriptorName = "http";
        Accept = "no";
        FlushPending = "no";
        Backlog = 4096;
      };
    };

    systemd.services.strata-router = {
      description = "strata-router, one LLM engine lent out fairly";
      requires = [ "strata-router.socket" ];
      after = [
        "strata-router.socket"
        "network.target"
      ];
      wantedBy = [ "multi-user.target" ];

      # With NixOS's default a changed service is stopped and started, which stops its socket as well and
      # drops the clients that wait in it. With false it is restarted by itself.
      stopIfChanged = false;

      unitConfig.StartLimitIntervalSec = 0;

      serviceConfig = {
        Type = "notify";
        NotifyAccess = "main";
        ExecStart = "${cfg.package}/bin/strata-router daemon ${cfg.configFile}";
        Restart = "on-failure";
        RestartSec = "250ms";
        WatchdogSec = "2min";

        KillMode = "mixed";
        SendSIGKILL = "yes";
        TimeoutStopSec = "infinity";
        OOMPolicy = "continue";

        User = "strata-router";
        Group = "strata-router";
        UMask = "0077";
        RuntimeDirectory = "strata-router";
        RuntimeDirectoryMode = "0700";
        StateDirectory = "strata-router";
        StateDirectoryMode = "0700";
        CacheDirectory = "strata-router";
        CacheDirectoryMode = "0700";
        Environment = [
          "HOME=%S/strata-router"
          "XDG_CACHE_HOME=%C/strata-router"
          "CUDA_CACHE_PATH=%C/strata-router/nv"
          "PYTHONDONTWRITEBYTECODE=1"
        ];
        ReadWritePaths = map (directory: "-${directory}") cfg.profileDirectories;

        LimitMEMLOCK = "infinity";
        LimitNOFILE = 65536;
        LimitCORE = 0;

        PrivateDevices = "no";
        DevicePolicy = "closed";
        DeviceAllow = map (class: "${class} rw") cfg.deviceClasses;
        MemoryDenyWriteExecute = "no";
        ProcSubset = "all";

        NoNewPrivileges = "yes";
        CapabilityBoundingSet = "";
        AmbientCapabilities = "";
        PrivateMounts = "yes";
        PrivateTmp = "yes";
        PrivateUsers = "yes";
        ProtectSystem = "strict";
        ProtectHome = "yes";
        ProtectProc = "invisible";
        ProtectClock = "yes";
        ProtectControlGroups = "yes";
        ProtectHostname = "yes";
        ProtectKernelLogs = "yes";
        ProtectKernelModules = "yes";
        ProtectKernelTunables = "yes";
        RestrictNamespaces = "yes";
        RestrictRealtime = "yes";
        RestrictSUIDSGID = "yes";
        LockPersonality = "yes";
        RemoveIPC = "yes";
        KeyringMode = "private";
        RestrictAddressFamilies = "AF_UNIX AF_INET AF_INET6 AF_NETLINK";
        SystemCallArchitectures = "native";
        SystemCallFilter = [
          "@system-service"
          "~@privileged"
        ];
        SystemCallErrorNumber = "EPERM";
        IPAddressDeny = "any";
        IPAddressAllow = "localhost";
      };
    };
  };
}
