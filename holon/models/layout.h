// Which ranks hold what of a model: its layout as data. Modules take a Layout and write no communication of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holon/array/dtype.h"
#include "holon/global/nd_sbp.h"
#include "holon/global/placement.h"
#include "holon/tensor/tensor.h"

namespace holon::models {

// How many ranks share each part of the work. Together they are all ranks of the world.
struct Parallel {
  int64_t dp = 1;  // data parallel: rows of a batch
  int64_t tp = 1;  // tensor parallel: heads, hidden units and vocabulary
  int64_t pp = 1;  // pipeline parallel: layers
  int64_t ep = 1;  // expert parallel: experts, and rows of a batch as dp
  int64_t cp = 1;  // context parallel: positions, for decoders with rotary embeddings

  // How many ranks they are.
  int64_t size() const { return dp * tp * pp * ep * cp; }
};

// The layout of one stage of a pipeline: its ranks in a grid, whose axes are dp, ep and cp (if there is more than one)
// and tp, and how tensors are divided along these axes.
struct Layout {
  Placement placement{};
  // Activations and inputs [batch, ...]: each rank of dp and ep has its rows, and of [batch, length, ...] each rank of
  // cp its positions.
  NdSbp rows{};
  NdSbp whole{};    // norms, and what the others do not divide
  NdSbp experts{};  // weights [experts, ...]: each rank of ep has its experts
  DType dtype = float32;
  Parallel parallel{};

  // Of a weight whose axis is divided among the ranks of tp: 0 of [out, in] divides outputs, 1 inputs.
  NdSbp tensor_parallel(int axis) const;
  // The same of a weight [experts, ...], whose axis 0 is divided among the ranks of ep.
  NdSbp expert_tensor_parallel(int axis) const;
  // `sbp` with this instead along the axis of cp; as it is where there is none. whole with split(1) are positions [1,
  // length] that all rows have in common; rows with broadcast() are rows of which each rank has all positions.
  NdSbp with_positions(const NdSbp& sbp, Sbp positions) const;

  // One for each stage. Errors (ValueError): sizes below 1; sizes that are not those of the world.
  static std::vector<Layout> over(const Parallel& parallel, DType dtype = float32, const std::string& device = "cpu");
};

// The stage of a layer, of n_layers that the stages share: as many for each, or one more for some.
int64_t stage_of(int64_t layer, int64_t n_layers, const std::vector<Layout>& layouts);
// Errors (ValueError): fewer layers than stages; cp above 1 for a model that does not split positions. model: for
// messages.
void check_stages(const char* model, int64_t n_layers, const std::vector<Layout>& layouts,
                  bool splits_positions = false);
// Errors (ValueError): the ranks of tp do not divide n of what, such as attention heads.
void check_divides(const char* model, const char* what, int64_t n, const Layout& layout);

// x by rows on the layout's ranks. A local tensor is the whole value, alike on all ranks; one of a single row for more
// rows is given whole to each rank, apart from its positions.
Tensor by_rows(const Tensor& x, const Layout& layout, int64_t rows);
// x whole on each of its ranks, for a look at its values. A local tensor is returned as it is.
Tensor whole_on_each(const Tensor& x);
// x, activations on the layout's ranks, by rows: what is a partial sum, behind a weight whose inputs are divided, is
// added up. So is the gradient, once, and not by each op that needs it.
Tensor added_up(const Tensor& x, const Layout& layout);
// x, activations of another stage, on this one's ranks.
Tensor to_stage(const Tensor& x, const Layout& layout);

}  // namespace holon::models
