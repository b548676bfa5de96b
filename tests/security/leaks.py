"""`python -m tests.security.leaks [--all]`: detect-secrets over what changed since .secrets.baseline was made.

Looking through everything takes minutes; the baseline says when that was done last, and git says what changed since.
`--all` looks through everything and writes the baseline anew: read what it adds before it is committed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.servers.peers import peer
from tests.servers.process import Missing

ROOT = Path(__file__).parents[2]
DETECT_SECRETS = ("detect-secrets==1.5.0",)
BASELINE = ".secrets.baseline"


def main(words: list[str]) -> int:
    try:
        programs = peer("detect-secrets", *DETECT_SECRETS)
    except Missing as missing:
        print(f"secrets not looked for: {missing}", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    if "--all" in words:
        # Words such as `secretName` fill manifests; passwords written into code are found by ruff and bandit.
        scan = [programs / "detect-secrets", "scan", "--no-verify", "--disable-plugin", "KeywordDetector"]
        whole = subprocess.run(scan, check=True, capture_output=True, cwd=ROOT)
        (ROOT / BASELINE).write_bytes(whole.stdout)
        return 0
    paths = changed()
    if not paths:
        return 0
    hook = [str(programs / "detect-secrets-hook"), "--baseline", BASELINE, "--no-verify"]
    # The hook writes moved lines into its baseline and asks for a commit: that is no leak.
    before = (ROOT / BASELINE).read_bytes()
    done = subprocess.run([*hook, *paths], check=False, cwd=ROOT)
    (ROOT / BASELINE).write_bytes(before)
    print(f"looked for secrets in {len(paths)} files")
    return done.returncode if done.returncode != 3 else 0


def changed() -> list[str]:
    """Files that are not as they were when everything was looked through; all of them without a history."""
    made = json.loads((ROOT / BASELINE).read_bytes())["generated_at"]
    then = _git("rev-list", "-1", f"--before={made}", "HEAD")
    diff = _git("diff", "--name-only", "--diff-filter=d", then[0]) if then else _git("ls-files")
    found = {*diff, *_git("ls-files", "--others", "--exclude-standard")} - {BASELINE}
    return sorted(path for path in found if (ROOT / path).is_file())


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], check=False, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
