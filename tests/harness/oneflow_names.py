"""Names that programs for OneFlow 0.7-0.9 use: counted in OneFlow's own tests of global tensors and graphs and in
LiBai, with what is next to them in OneFlow. By the dotted path that they are under; "" is the package itself."""

# Each of these is a function of the package or of nn.functional, or a method of Tensor.
OPERATORS = """
add sub mul div neg pow matmul cast view reshape cat sum mean unsqueeze squeeze split chunk permute transpose flatten
expand expand_as contiguous clone detach copy_ linear ones zeros full arange randn rand randint empty ones_like
zeros_like full_like tensor from_numpy numpy item tolist relu gelu softmax log_softmax dropout layer_norm embedding
cross_entropy sparse_softmax_cross_entropy nll_loss mse_loss conv2d max_pool2d avg_pool2d adaptive_avg_pool2d batch_norm
sqrt rsqrt square exp log tanh sigmoid abs max min argmax argmin maximum minimum clamp where masked_fill eq ne gt ge lt
le logical_and logical_or logical_not equal allclose gather index_select masked_select stack norm linalg.norm fill_
zero_ add_ mul_ sub_ div_ normal_ uniform_ clamp_ masked_fill_ bmm baddbmm addmm einsum tensordot dot mv silu leaky_relu
elu softplus hardtanh hardswish hardsigmoid var std prod cumsum cumprod topk sort argsort unique nonzero argwhere tril
triu eye linspace meshgrid repeat tile roll flip pad unbind movedim narrow broadcast_to one_hot sin cos erf erfinv_
floor ceil round sign fmod floor_divide reciprocal log2 expm1 log1p any all isnan isinf scatter scatter_add scatter_nd
gather_nd tensor_scatter_nd_update bernoulli multinomial randperm normal randint_like randn_like group_norm conv1d
conv_transpose2d interpolate normalize pixel_shuffle smooth_l1_loss l1_loss kl_div binary_cross_entropy
binary_cross_entropy_with_logits median amax amin logsumexp addcmul addcdiv quantile rms_norm unfold fold lstm gru
""".split()

NAMES = {
    "": """
        BoolTensor DoubleTensor FloatTensor Generator IntTensor LongTensor Size Tensor abs amax any arange argmax
        argsort argwhere baddbmm batch_gather bfloat16 bincount bmm bool broadcast_like cast cat chunk clamp clip concat
        cos cumprod cumsum device distributed_partial_fc_sample double dtype einsum empty empty_like equal exp eye finfo
        flatten flip float float16 float32 float64 from_numpy full full_like gather hann_window index_select
        inference_mode int int32 int64 int8 is_tensor isfinite linspace load log log2 log_softmax logspace long
        manual_seed masked_fill matmul max mean median meshgrid min mul multinomial nansum new_empty new_zeros nms
        no_grad nonzero norm normal numel one_embedding.Ftrl ones ones_like placement pow quantile rand randint
        randint_like randn randn_like randperm relu reshape roi_align roll save sbp scatter scatter_nd searchsorted
        sigmoid sign sin slice softmax sort split sqrt stack sum sysconfig.has_rpc_backend_grpc tanh tensor
        tensor_scatter_nd_update to_global topk transpose tril uint8 unique var where zeros zeros_like
    """.split(),
    "Tensor": """
        T abs acos acosh add add_ addcdiv addcdiv_ addcmul addcmul_ addmm all allclose amax amin arccos arccosh argmax
        argmin argsort atan2 backward bernoulli_ bfloat16 bincount bool broadcast_to ceil chunk clamp clamp_ clip clone
        contiguous copy_ cos cpu cross cuda cumprod cumsum data detach device diag dim div dot dtype eq erf exp expand
        expand_as fill_ flatten flip float floor floor_divide gather ge global_id grad half index_select int
        is_contiguous is_global is_leaf is_local item log log2 logical_not long masked_fill masked_fill_ masked_select
        matmul max maximum mean median min minimum mul mul_ nansum ndim ne new_empty new_full new_ones new_zeros nonzero
        norm normal_ numel numpy permute placement pow prod relu repeat requires_grad requires_grad_ reshape retain_grad
        roll round sbp scatter scatter_add_ shape sigmoid sign sin size softmax sort split sqrt squeeze std sub sum t
        tile to to_consistent to_global to_local tolist topk transpose tril triu type type_as unbind unfold uniform_
        unique unsqueeze var view where zero_
    """.split(),
    "_C": """
        amp_black_identity amp_white_identity cross_entropy flatten fused_bias_add_dropout fused_bias_add_gelu
        fused_bias_add_scale_mask_softmax_dropout fused_fast_gelu_mul fused_multi_head_attention_inference_v2
        fused_scale_mask_softmax_dropout fused_scale_tril_softmax_mask_scale fused_self_attention gather gelu
        global_arange layer_norm layer_norm_affine matmul one_embedding_embedding_gradient_shuffle
        one_embedding_id_shuffle quick_gelu relu reshape_like rms_norm sparse_softmax_cross_entropy transpose
    """.split(),
    "amp": """
        GradScaler StaticGradScaler autocast
    """.split(),
    "autograd": """
        Function backward enable_grad grad inference_mode is_grad_enabled no_grad set_grad_enabled
    """.split(),
    "backends": """
        cudnn.enable_conv_heuristic_search_algo cudnn.enable_fused_normalization_add_relu cudnn.set_reserved_mem_mbytes
    """.split(),
    "boxing": """
        enable_fusion nccl.allow_fuse_all_gather nccl.allow_fuse_all_reduce nccl.allow_fuse_broadcast
        nccl.allow_fuse_mixed_ops nccl.allow_fuse_reduce nccl.allow_fuse_reduce_scatter
        nccl.disable_group_boxing_by_dst_parallel nccl.enable_all_to_all nccl.enable_use_buffer_to_fuse_all_reduce
        nccl.enable_use_compute_stream nccl.set_fusion_max_ops_num nccl.set_fusion_threshold_mbytes nccl.set_stream_num
    """.split(),
    "comm": """
        all_gather all_gather_into_tensor all_reduce all_to_all barrier broadcast gather recv reduce reduce_scatter
        reduce_scatter_tensor scatter send
    """.split(),
    "config": """
        allow_fuse_add_to_output allow_fuse_cast_scale allow_fuse_model_update_ops enable_amp enable_auto_parallel
        enable_auto_parallel_ignore_user_sbp_config enable_auto_parallel_sbp_collector enable_auto_parallel_trunk_algo
        enable_compress_memory enable_cudnn_conv_heuristic_search_algo enable_fused_model_update_cast
        enable_multi_tensor_update enable_straighten_algorithm enable_zero set_auto_parallel_computation_cost_ratio
        set_auto_parallel_wait_time set_gradient_accumulation_steps set_outputs_buffer_size
        set_zero_redundancy_optimizer_mode
    """.split(),
    "cuda": """
        FloatTensor HalfTensor current_device device_count empty_cache get_device_capability get_device_name
        get_device_properties is_available manual_seed manual_seed_all set_device synchronize
    """.split(),
    "env": """
        all_device_placement get_local_rank get_node_size get_rank get_world_size init_rdma rdma_is_initialized
    """.split(),
    "linalg": """
        norm
    """.split(),
    "nn": """
        AdaptiveAvgPool1d AvgPool2d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d CTCLoss CoinFlip
        CombinedMarginLoss Conv1d Conv2d ConvTranspose2d CropMirrorNormalize CrossEntropyLoss Dropout Flatten
        FusedBatchNorm1d FusedBatchNorm2d FusedBatchNorm3d GELU GLU GRU Graph GroupNorm Identity InstanceNorm1d
        InstanceNorm2d InstanceNorm3d KLDivLoss LSTM LayerNorm LeakyReLU Linear MSELoss MaxPool2d MinMaxObserver Module
        ModuleDict ModuleList MovingAverageMinMaxObserver NLLLoss OFRecordBytesDecoder OFRecordImageDecoder
        OFRecordImageDecoderRandomCrop OFRecordImageGpuDecoderRandomCropResize OFRecordRawDecoder OFRecordReader
        Parameter ParameterDict ParameterList PixelShuffle RNN ReLU Sequential SiLU SmoothL1Loss Softmax Tanh Upsample
    """.split(),
    "nn.Graph": """
        _compile _full_graph_proto add_optimizer build config debug is_compiled load_state_dict name set_grad_scaler
        state_dict training
    """.split(),
    "nn.functional": """
        cross_entropy deform_conv2d dropout gelu interpolate l1_loss layer_norm linear log_softmax mse_loss
        multi_head_attention_forward normalize one_hot pad relu silu smooth_l1_loss softmax sparse_softmax_cross_entropy
    """.split(),
    "nn.graph": """
        GraphModule GraphTensor Proxy util.ArgsTree
    """.split(),
    "nn.graph.GraphModule": """
        activation_checkpointing debug name name_prefix scope set_stage stage_id stage_placement type
    """.split(),
    "nn.init": """
        constant_ kaiming_uniform_ normal_ ones_ uniform_ xavier_normal_ xavier_uniform_ zeros_
    """.split(),
    "nn.parallel": """
        DistributedDataParallel
    """.split(),
    "nn.utils": """
        clip_grad_norm_ clip_grad_value_ remove_weight_norm weight_norm
    """.split(),
    "optim": """
        Adadelta Adagrad Adam AdamW LAMB Optimizer RMSprop SGD lr_scheduler
    """.split(),
    "optim.lr_scheduler": """
        ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CosineDecayLR ExponentialLR LambdaLR
        LinearLR MultiStepLR PolynomialLR ReduceLROnPlateau SequentialLR StepLR WarmUpLR WarmupLR _LRScheduler
    """.split(),
    "placement": """
        all
    """.split(),
    "sbp": """
        broadcast partial_sum sbp split
    """.split(),
    "sysconfig": """
        get_include get_lib has_rpc_backend_grpc
    """.split(),
    "utils": """
        checkpoint.checkpoint data.DataLoader data.Dataset data._utils.worker.ExceptionWrapper data.random_split
        global_view.current_global_mode global_view.global_mode global_view.to_global global_view.to_local load_library
    """.split(),
    "utils.data": """
        BatchSampler ConcatDataset DataLoader Dataset DistributedSampler IterableDataset RandomSampler Sampler
        SequentialSampler Subset SubsetRandomSampler TensorDataset get_worker_info random_split
    """.split(),
}
