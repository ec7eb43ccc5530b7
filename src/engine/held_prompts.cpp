#include "engine/held_prompts.h"

namespace outrider {

const std::array<std::string_view, kHeldPromptCount>& held_prompts() {
  static constexpr std::array<std::string_view, kHeldPromptCount> kPrompts = {
      "# Rotating log files\n\nThe daemon writes one file per day. When a file grows beyond the limit set by "
      "`max_bytes`, it is closed,\nrenamed with a number, and a new one is opened. To change the limit,",

      "## Connection pool\n\nA pool keeps idle connections open so that a request does not wait for a handshake. The "
      "number of connections is\nbounded. When all of them are in use, a caller",

      "# mirrorctl\n\n`mirrorctl` copies a directory tree to several machines.\n\n## Usage\n\n```\nmirrorctl [options] "
      "SOURCE HOST...\n```\n\n## Options\n\n- `--dry-run`: print what would be copied.\n-",

      "## Error codes\n\nEvery function returns 0 on success and a negative number otherwise. The number can be passed "
      "to `lk_strerror()`,\nwhich returns a pointer to a constant string. The string",

      "# Upgrading from 3.x to 4.0\n\nVersion 4.0 changes the format of the index. Before you install it, make a copy "
      "of the data directory. The first start\nafter the upgrade",

      "### class Timetable\n\nA timetable maps moments to tasks. It is not safe to use one object from several threads "
      "without a lock.\n\n#### add(moment, task)\n\nAdds a task that is run at the given moment. If",

      "## Configuration\n\nThe file is read once, when the process starts. Each line holds a key, an equals sign and a "
      "value; lines that begin with\na hash are ignored. The following keys are known:\n\n| Key | Default | Meaning "
      "|\n|---|---|---|\n|",

      "# Building from source\n\nYou need a C compiler, CMake and the header files of zlib.\n\n```\ngit clone "
      "https://example.org/grain.git\ncd grain\nmkdir build\n",

      "## Memory alignment\n\nThe address of a buffer must be a multiple of 64. Functions that read whole vectors do "
      "not check it: on a buffer that\nis not aligned",

      "## Tracing a slow query\n\nFirst turn the trace on for one session only. Then run the query again and look for "
      "the step that took most of the\ntime. If that step is a full scan of a table,",

      "# Plug-ins\n\nA plug-in is a shared library with one exported function. The host calls it once and passes a "
      "table of callbacks. The\nfunction must return",

      "```python\nimport heliograph\n\nclient = heliograph.Client(\"localhost\", port=9191)\nclient.send(\"status\")\n"
      "```\n\nThe call above blocks until the answer has arrived. To wait no longer than a given time,",

      "## Units\n\nLengths are given in metres unless a suffix says otherwise. Angles are in degrees, measured "
      "clockwise from north. A\nvalue without a unit",

      "# Release notes\n\n## 2.7.1\n\n- Fixed a crash when the cache directory does not exist.\n- The option `--quiet` "
      "now also hides warnings.\n-",

      "## Locking\n\nThe file `tide.lock` is created when a writer starts and removed when it ends. A second writer "
      "that finds the file waits.\nIf a process was killed and left the file behind,",

      "### Permissions\n\nOnly members of the group `operators` may restart a service. To add a user to the group, "
      "run the following command as\nroot:\n\n```",

      "## Numbers in the input\n\nThe parser accepts decimal numbers with an optional sign, an optional fraction and "
      "an "
      "optional exponent. It rejects\nnumbers that",

      "# Backups\n\nA full backup is made every Sunday and an incremental one on all other days. To restore the state "
      "of a given day, the\nfull backup before it and",

      "## Thread safety\n\nAll functions whose names end in `_r` may be called from several threads at the same time. "
      "The others share a static\nbuffer. Therefore",

      "## Sensors\n\nEach sensor is described by an object with the members `id`, `kind` and `interval_ms`. The driver "
      "polls a sensor once\nper interval and stores the reading in a ring of 256 entries. When the ring is full,",
  };
  return kPrompts;
}

}  // namespace outrider
