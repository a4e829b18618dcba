"""OneFlow's names that are not there, and what to use instead.
A name is removed when Holon gets it: the test of names enforces it."""

_DATA = (
    "OFRecord files and DALI-like readers are not there. "
    "Read samples in a utils.data.Dataset and load them by a utils.data.DataLoader."
)
_QUANTIZATION = "quantisation is not there. Train in bfloat16 by amp.autocast instead."
_DETECTION = "operators for detection are not there. Write it with ops, or in C++ as your own op (utils.cpp_extension)."
_EMBEDDING = (
    "OneEmbedding is not there. An nn.Embedding whose weight is split(0) over the ranks holds a table that no one rank "
    "can, and its lookups need no further code."
)
_PROTO = "a graph has no protobuf. graph.captured() and graph.plan() show it as text, graph.plot(path) as a picture."
_INIT = "fill x by nn.init.{}(x)."

NAMES = {
    # the package
    "asyncs": "there are no user threads: a graph overlaps communication with computation automatically.",
    "as_strided": "choose the view by slices, reshape, permute and expand.",
    "column_stack": "use flow.cat(tensors, dim=1), of columns made by unsqueeze(1).",
    "convert_oneflow_dtype_to_numpy_dtype": "use x.numpy().dtype.",
    "decode_onerec": _DATA,
    "deform_conv2d": _DETECTION,
    "distributed_partial_fc_sample": (
        "sampling of classes is not there: cross_entropy of logits that are split by classes needs no whole row."
    ),
    "distributions": "draw by flow.normal, flow.rand, flow.multinomial and so on.",
    "fmin": "use flow.minimum.",
    "fx": "a step is captured by nn.Graph, or by flow.jit.",
    "gen_tensor_buffer": _DATA,
    "hsplit": "use flow.split(x, sizes, dim=1).",
    "hub": "download the files yourself, and load them by load_state_dict.",
    "in_top_k": "use x.topk(k) and compare the indices.",
    "inverse": "solve by one's own iteration, or on the local value by NumPy: x.numpy().",
    "lgamma": "use NumPy or SciPy on the local value.",
    "mock_torch": "import holon as torch: the names of nn, optim and autograd are PyTorch's.",
    "nms": _DETECTION,
    "one_embedding": _EMBEDDING,
    "profiler": "run with HOLON_TRACE=trace.json, and open the file in Perfetto.",
    "roc_auc_score": "compute it on the values of all ranks: x.numpy().",
    "roi_align": _DETECTION,
    "script": "use flow.jit.",
    "set_default_tensor_type": "say dtype= where a tensor is made.",
    "set_num_threads": "set OMP_NUM_THREADS before the program starts.",
    "stft": "use scipy.signal on the local value.",
    "tensor_buffer": _DATA,
    "tensor_buffer_to_list_of_tensors": _DATA,
    "tensor_buffer_to_tensor": _DATA,
    "tensor_to_tensor_buffer": _DATA,
    "vsplit": "use flow.split(x, sizes, dim=0).",
    "_oneflow_internal": (
        "OneFlow's own C++ module is not there. What programs need of it has a public name: "
        "flow.env, flow.comm, flow.boxing."
    ),
    # _C
    "_C.one_embedding_embedding_gradient_shuffle": _EMBEDDING,
    "_C.one_embedding_id_shuffle": _EMBEDDING,
    "_C.fused_multi_head_attention_inference_v2": (
        "use flow._C.fused_multi_head_attention_inference, or nn.functional.scaled_dot_product_attention."
    ),
    "_C.fused_mlp": "use nn.functional.linear and relu in turn: a graph fuses them.",
    # env
    "env.destory_rdma": "there is no RDMA: messages between hosts go over TCP.",
    # nn
    "nn.AllReduce": "use x.to_global(sbp=flow.sbp.broadcast), or flow.comm.all_reduce.",
    "nn.COCOReader": _DATA,
    "nn.CoinFlip": "use flow.rand(batch_size) < probability.",
    "nn.CombinedMarginLoss": "change the cosine of the true class by flow.where, and use nn.CrossEntropyLoss.",
    "nn.CropMirrorNormalize": _DATA,
    "nn.DistributedPariticalFCSample": (
        "sampling of classes is not there: cross_entropy of logits that are split by classes needs no whole row."
    ),
    "nn.FakeQuantization": _QUANTIZATION,
    "nn.FusedBatchNorm1d": "use nn.BatchNorm1d and nn.ReLU: a graph fuses what follows it.",
    "nn.FusedBatchNorm2d": "use nn.BatchNorm2d and nn.ReLU: a graph fuses what follows it.",
    "nn.FusedBatchNorm3d": "use nn.BatchNorm3d and nn.ReLU: a graph fuses what follows it.",
    "nn.FusedMLP": "use nn.Linear and nn.ReLU in an nn.Sequential: a graph fuses them.",
    "nn.GPTIndexedBinDataReader": "use holon.data.ByteCorpus, or a utils.data.Dataset over a numpy.memmap.",
    "nn.MinMaxObserver": _QUANTIZATION,
    "nn.MovingAverageMinMaxObserver": _QUANTIZATION,
    "nn.OFRecordBytesDecoder": _DATA,
    "nn.OFRecordImageDecoder": _DATA,
    "nn.OFRecordImageDecoderRandomCrop": _DATA,
    "nn.OFRecordImageGpuDecoderRandomCropResize": _DATA,
    "nn.OFRecordRawDecoder": _DATA,
    "nn.OFRecordReader": _DATA,
    "nn.OfrecordRawDecoder": _DATA,
    "nn.OfrecordReader": _DATA,
    "nn.OneRecReader": _DATA,
    "nn.QatConv1d": _QUANTIZATION,
    "nn.QatConv2d": _QUANTIZATION,
    "nn.QatConv3d": _QUANTIZATION,
    "nn.Quantization": _QUANTIZATION,
    "nn.RMSLayerNorm": "use nn.RMSNorm(hidden_size, eps).",
    "nn.RawReader": _DATA,
    "nn.image": _DATA,
    "nn.qat": _QUANTIZATION,
    "nn.functional.ctc_greedy_decoder": "use argmax over the classes, and drop repeated and blank ones.",
    "nn.functional.deform_conv2d": _DETECTION,
    "nn.functional.gumbel_softmax": "use softmax((logits - log(-log(rand_like(logits)))) / tau).",
    "nn.functional.multi_head_attention_forward": (
        "use nn.MultiheadAttention, or nn.functional.scaled_dot_product_attention."
    ),
    # linalg
    "linalg.diagonal": "use flow.diagonal.",
    "linalg.inv": "solve by one's own iteration, or on the local value by NumPy: x.numpy().",
    # utils
    "utils.data.IterDataPipe": "use utils.data.IterableDataset.",
    "utils.data._utils": "what a worker raises comes out of the DataLoader as the exception that it was.",
    "utils.tensor": "use flow.tensor(x.numpy()), or flow.from_dlpack.",
}

TENSOR = {
    "as_strided": "choose the view by slices, reshape, permute and expand.",
    "check_meta_consistency": "to_global compares shapes and dtypes of the ranks unless check_meta=False.",
    "global_id": "a tensor has no number. Use id(x), or a name.",
    "in_top_k": "use x.topk(k) and compare the indices.",
    "inverse": NAMES["inverse"],
    "is_consistent": "use x.is_global.",
    "kaiming_normal_": _INIT.format("kaiming_normal_"),
    "kaiming_uniform_": _INIT.format("kaiming_uniform_"),
    "nms": _DETECTION,
    "orthogonal_": _INIT.format("orthogonal_"),
    "to_consistent": "it has been removed from OneFlow, too. Use x.to_global(placement, sbp).",
    "to_numpy": "use x.numpy().",
    "xavier_normal_": _INIT.format("xavier_normal_"),
    "xavier_uniform_": _INIT.format("xavier_uniform_"),
}

GRAPH = {
    "_full_graph_proto": _PROTO,
    "_graph_proto": _PROTO,
    "_compiled_graph_proto": _PROTO,
    "finish_complie_and_init_runtime": "compile(*inputs) does all of it.",
}


def tell(holon):
    """Makes Holon's AttributeErrors say it."""
    from holon import _missing

    _missing.hints.update(NAMES)
    _missing.leave_out(holon.Tensor, TENSOR)


def module_text(path):
    """The text for a module that cannot be imported."""
    parts = path.split(".")
    for n in range(len(parts), 0, -1):
        if text := NAMES.get(".".join(parts[:n])):
            return f"oneflow.{path} is not there: {text}"
    return (
        f"there is no module oneflow.{path}. Modules are those of Holon: "
        "oneflow.nn, oneflow.optim, oneflow.utils.data and so on."
    )
