# The router alone: no GPU driver, no Strata, no weights. Built by flake.nix; see docs/deployment.md.
{
  lib,
  python3Packages,
  installShellFiles,
}:

let
  root = ../..;
  # The one place of the version; this file must not repeat it.
  version = builtins.head (
    builtins.match ".*__version__ = \"([^\"]+)\".*" (
      builtins.readFile (root + "/strata_router/__init__.py")
    )
  );
in
python3Packages.buildPythonApplication {
  pname = "strata-router";
  inherit version;
  pyproject = true;
  src = lib.cleanSource root;

  build-system = [ python3Packages.flit-core ];
  dependencies = with python3Packages; [
    trio
    h11
    httpx
    hypercorn
    quart-trio
    orjson
    pyyaml
    prometheus-client
  ];

  nativeBuildInputs = [ installShellFiles ];
  postInstall = ''
    installManPage docs/strata-router.1
  '';

  nativeCheckInputs = with python3Packages; [
    pytest
    hypothesis
  ];
  # The pure half: it needs no socket, child or clock, which a build sandbox may lack.
  checkPhase = ''
    runHook preCheck
    python -m pytest tests/core
    runHook postCheck
  '';
  pythonImportsCheck = [ "strata_router.runtime.daemon" ];

  meta = {
    description = "A daemon that owns one LLM engine process and lends it out fairly";
    license = lib.licenses.mpl20;
    mainProgram = "strata-router";
    platforms = lib.platforms.linux;
  };
}
