// Convolutions by cuDNN's graphs.
#include "holon/kernels/cuda/dnn.h"
#include "holon/kernels/cuda/vendor_cudnn.h"

#ifdef HOLON_CUDNN_GRAPHS

#include <vector>

namespace holon::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t { kX = 1, kW, kY, kBias };

std::vector<int64_t> first(const int64_t* values, int64_t count) { return {values, values + count}; }

fe::graph::Tensor_attributes described(const DnnTensor& t, int64_t axes, Uid uid) {
  return fe::graph::Tensor_attributes().set_uid(uid).set_dim(first(t.sizes, axes)).set_stride(first(t.strides, axes));
}

cudnn::Plan* plan_of(const Convolution& c) {
  // More than windows as a matrix take at once elsewhere, and little of a device's memory.
  const cudnn::Limits limits{.exact = c.exact != 0, .workspace_bytes = int64_t{512} << 20};
  return cudnn::plan_of(c, limits, "a convolution", [&c](fe::graph::Graph& graph) {
    const auto type = cudnn::type_of(c.dtype);
    const auto compute = static_cast<DType>(c.dtype) == DType::kFloat64 ? type : fe::DataType_t::FLOAT;
    graph.set_io_data_type(type).set_intermediate_data_type(compute).set_compute_data_type(compute);
    const int64_t n = c.axes - 2;
    auto set = [&](auto options) {
      return options.set_pre_padding(first(c.before, n))
          .set_post_padding(first(c.after, n))
          .set_stride(first(c.stride, n))
          .set_dilation(first(c.dilation, n));
    };
    auto finish = [&](const cudnn::Tensor& t, const DnnTensor& of, Uid uid) {
      t->set_output(true).set_uid(uid).set_dim(first(of.sizes, c.axes)).set_stride(first(of.strides, c.axes));
    };
    switch (c.pass) {
      case ConvolutionPass::kForward: {
        const auto x = graph.tensor(described(c.x, c.axes, kX)), w = graph.tensor(described(c.w, c.axes, kW));
        auto y = graph.conv_fprop(x, w, set(fe::graph::Conv_fprop_attributes()));
        if (c.bias) {
          y->set_dim(first(c.y.sizes, c.axes)).set_stride(first(c.y.strides, c.axes));
          DnnTensor of_bias;
          for (int64_t i = 0; i < c.axes; ++i) of_bias.sizes[i] = 1, of_bias.strides[i] = 1;
          of_bias.sizes[1] = of_bias.strides[0] = c.y.sizes[1];
          const auto bias = graph.tensor(described(of_bias, c.axes, kBias));
          y = graph.pointwise(y, bias, fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD));
        }
        return finish(y, c.y, kY);
      }
      case ConvolutionPass::kData: {
        const auto dy = graph.tensor(described(c.y, c.axes, kY)), w = graph.tensor(described(c.w, c.axes, kW));
        return finish(graph.conv_dgrad(dy, w, set(fe::graph::Conv_dgrad_attributes())), c.x, kX);
      }
      case ConvolutionPass::kWeights: {
        const auto dy = graph.tensor(described(c.y, c.axes, kY)), x = graph.tensor(described(c.x, c.axes, kX));
        return finish(graph.conv_wgrad(dy, x, set(fe::graph::Conv_wgrad_attributes())), c.w, kW);
      }
    }
  });
}

}  // namespace

bool supports(const Convolution& c) { return plan_of(c) != nullptr; }

bool convolution(const Convolution& c, const void* first, const void* second, const void* bias, void* out) {
  cudnn::Plan* plan = plan_of(c);
  if (!plan) return false;
  switch (c.pass) {
    case ConvolutionPass::kForward:
      return cudnn::run(*plan, {{kX, first}, {kW, second}, {kBias, bias}, {kY, out}}, "a convolution");
    case ConvolutionPass::kData:
      return cudnn::run(*plan, {{kY, first}, {kW, second}, {kX, out}}, "a convolution's gradient");
    default: return cudnn::run(*plan, {{kY, first}, {kX, second}, {kW, out}}, "a convolution's gradient");
  }
}

}  // namespace holon::kernels::cuda

#else

namespace holon::kernels::cuda {

bool supports(const Convolution&) { return false; }
bool convolution(const Convolution&, const void*, const void*, const void*, void*) { return false; }

}  // namespace holon::kernels::cuda
#endif
