// The kernels as targets of XLA's foreign function interface, for JAX on the CPU.
#pragma once

#include <utility>
#include <vector>

namespace softorder::xla {

// Names of the targets, and the handlers that XLA calls, as it wants to be given them.
std::vector<std::pair<const char*, void*>> targets();

}  // namespace softorder::xla
