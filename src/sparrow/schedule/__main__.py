"""Write the published schedules as YAML files into the folder named on the command line."""

import sys

from sparrow.schedule.published import write_presets

if len(sys.argv) != 2:
    sys.exit("usage: python -m sparrow.schedule FOLDER")
for path in write_presets(sys.argv[1]):
    print(path)
