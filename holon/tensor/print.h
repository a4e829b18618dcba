// How tensors, placements and sbps look as text.
#pragma once

#include <string>

#include "holon/tensor/tensor.h"

namespace holon {

// How tensors are printed.
struct PrintOptions {
  std::string prefix = "holon";  // of names such as holon.float32; a package of the same names sets its own
  // A global tensor's text shows the whole value, so that printing is collective; what follows the values is broken
  // into lines.
  bool gather = false;
  int precision = 4;
  int64_t threshold = 1000;  // from so many elements on, only the edges are shown
  int edge_items = 3;
  int line_width = 80;
};
// One for the process; set it before ranks start.
PrintOptions& print_options();

std::string to_string(const Placement& placement);  // holon.placement(type="cpu", ranks=[0, 1])
std::string to_string(Sbp sbp);                     // holon.sbp.split(dim=0)
std::string to_string(const NdSbp& sbp);            // (holon.sbp.split(dim=0),)
std::string to_string(DType dtype);                 // holon.float32
// A global tensor's text with its whole value, which the caller has gathered.
std::string to_string(const Tensor& t, const Array& whole);
// The values alone, with brackets.
std::string array_to_string(const Array& array, int indent);

}  // namespace holon
