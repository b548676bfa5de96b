"""What running it costs (`make bench NAME=operate`): each part beside its limit in the same run, or alone by name.

python bench/operate.py                      all
python bench/operate.py erasure evidence     some
"""

from bars import told
from operate_agent import agent
from operate_erasure import erasure
from operate_evidence import evidence
from operate_restore import restore
from operate_sandbox import sandbox
from operate_upgrade import upgrade

if __name__ == "__main__":
    told("operate", [sandbox, agent, erasure, evidence, restore, upgrade])
