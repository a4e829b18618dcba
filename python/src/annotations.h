// What the stubs say of a parameter or a result that is any Python object to nanobind, since its function reads or
// makes it by itself: HandleOf<"Tensor | Sequence[Tensor]"> tensors. tools/generate_stubs.py has the names that may
// are there.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>

namespace holon::python {

template <size_t kSize>
struct AnnotationText {
  char text[kSize];
  constexpr AnnotationText(const char (&given)[kSize]) { std::copy_n(given, kSize, text); }  // NOLINT: implicit
};

template <AnnotationText kText>
struct Annotation : nanobind::object {
  static constexpr auto Name = nanobind::detail::const_name(kText.text);
};

template <AnnotationText kText>
using HandleOf = nanobind::typed<nanobind::handle, Annotation<kText>>;
template <AnnotationText kText>
using ObjectOf = nanobind::typed<nanobind::object, Annotation<kText>>;

using PlacementHandle = HandleOf<"placement">;
using SbpHandle = HandleOf<"_Sbp">;
using TensorsHandle = HandleOf<"Tensor | Sequence[Tensor]">;

}  // namespace holon::python
