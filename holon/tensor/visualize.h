// Who holds which part of a tensor, as text for a terminal and as SVG. Worked out from shape, placement and sbp alone:
// nothing is communicated, so that one rank may look by itself.
#pragma once

#include <string>
#include <vector>

#include "holon/global/slice.h"
#include "holon/tensor/tensor.h"

namespace holon {

// A part that some ranks hold.
struct PictureCell {
  // For each copy of the part the ranks whose values add up to it: one rank, unless it is a partial sum.
  std::vector<std::vector<int>> copies;
  bool here = false;         // this rank is one of them
  std::string text() const;  // "rank 0", "ranks 0, 1", "ranks 0 + 1", "ranks 0 + 1 = 2 + 3"
};

// The last two axes of a tensor, at one stretch of the axes before them.
struct PicturePlane {
  std::string title;  // "[0:2, :, :]"; "" where there are no more than two axes
  std::vector<Interval> rows, columns;
  std::vector<PictureCell> cells;  // row by row
};

// Which rank holds what, as text and as SVG.
struct Picture {
  std::string title;  // "float32 [4, 8], S(0) on placement(...)"
  std::vector<PicturePlane> planes;
  std::vector<std::string> notes;    // ranks that hold nothing, planes that were left out
  bool rows = true, columns = true;  // whether the tensor has these axes: of a vector there are only columns
  // For a terminal, and as an SVG document.
  std::string text() const;
  std::string svg() const;
};

// Of a tensor. Not collective.
Picture picture(const Tensor& t);
// Of a global tensor that need not be there.
Picture picture(const Dims& shape, DType dtype, const GlobalSpec* spec);

// picture(t).text(): one line for each stretch of the last axis but one.
std::string visualize(const Tensor& t);
// picture(t).svg(), its own document.
std::string visualize_svg(const Tensor& t);

// The steps that x.to_global(placement, sbp) takes, in words. Moves nothing. Errors: a local tensor (RuntimeError); an
// sbp that does not fit.
std::string explain(const Tensor& x, const Placement& placement, const NdSbp& sbp);

}  // namespace holon
