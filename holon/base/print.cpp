#include "holon/base/print.h"

#include <ostream>

namespace holon::detail {

std::ostream& write(std::ostream& to, std::string_view text) { return to << text; }

}  // namespace holon::detail
