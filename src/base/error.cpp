#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace outrider {

void check_failed(const char* expression, const char* file, int line, const std::string& detail) {
  std::fprintf(stderr, "outrider: bug: CHECK(%s) failed at %s:%d%s%s\n", expression, file, line,
               detail.empty() ? "" : ": ", detail.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace outrider
