// Losses.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op : {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"})
    for (const char* reduction : {"mean", "sum", "none"}) add(op, {x({5, 3}), x({5, 3})}, {{"reduction", reduction}});
  add("smooth_l1_loss", {x({5, 3}), x({5, 3})}, {{"beta", 0.0}});
  add("squared_difference", {x({5, 3}), x({5, 3})});
  add("squared_difference", {x({5, 3}), x({3})});
  add("squared_difference_backward", {x({5, 3}), x({5, 3}), x({5, 3})});
  add("smooth_l1", {x({5, 3}), x({5, 3})}, {{"beta", 0.7}});
  add("smooth_l1", {x({5, 3}), x({3})}, {{"beta", 0.7}});
  add("huber", {x({5, 3}), x({5, 3})}, {{"delta", 0.7}});
  add("smooth_l1_backward", {x({5, 3}), x({5, 3}), x({5, 3})}, {{"beta", 0.7}});
  add("huber_backward", {x({5, 3}), x({5, 3}), x({5, 3})}, {{"delta", 0.7}});
  for (bool log_target : {false, true})
    for (const char* reduction : {"mean", "sum", "none", "batchmean"})
      add("kl_div", {x({5, 3}), x({5, 3}, 0.1, 1)}, {{"reduction", reduction}, {"log_target", log_target}});

  for (const char* reduction : {"mean", "none"}) {
    add("binary_cross_entropy", {x({5, 3}, 0.1, 0.9), x({5, 3}, 0, 1), none()}, {{"reduction", reduction}});
    add("binary_cross_entropy", {x({5, 3}, 0.1, 0.9), x({5, 3}, 0, 1), x({3}, 0.5, 2)}, {{"reduction", reduction}},
        true);
    add("binary_cross_entropy_with_logits", {x({5, 3}), x({5, 3}, 0, 1), none(), none()}, {{"reduction", reduction}});
    add("binary_cross_entropy_with_logits", {x({5, 3}), x({5, 3}, 0, 1), x({3}, 0.5, 2), none()},
        {{"reduction", reduction}});
    add("binary_cross_entropy_with_logits", {x({5, 3}), x({5, 3}, 0, 1), none(), x({3}, 0.5, 2)},
        {{"reduction", reduction}});
  }
  for (const char* op : {"probability_loss", "logit_loss"}) {
    add(op, {x({5, 3}, 0.1, 0.9), x({5, 3}, 0, 1)});
    add(std::string(op) + "_backward", {x({5, 3}), x({5, 3}, 0.1, 0.9), x({5, 3}, 0, 1)});
  }

  add("cosine_similarity", {x({5, 3}), x({5, 3})});
  add("cosine_similarity", {x({5, 3}), x({3})}, {{"dim", -1}});
  add("cosine_similarity", {x({5, 3, 2}), x({5, 3, 2})}, {{"dim", 0}});
  add("cosine_embedding_loss", {x({5, 3}), x({5, 3}), ints({5}, 1, 1)});
  add("cosine_embedding_loss", {x({5, 3}), x({5, 3}), ints({5}, -1, -1)}, {{"margin", -2.0}, {"reduction", "sum"}});
  add("triplet_margin_loss", {x({5, 3}), x({5, 3}), x({5, 3})});
  add("triplet_margin_loss", {x({5, 3}), x({5, 3}), x({5, 3})},
      {{"margin", 2.0}, {"p", 1.0}, {"swap", true}, {"reduction", "none"}});
  add("triplet_margin_loss", {x({5, 3}), x({5, 3}), x({5, 3})}, {{"margin", 9.0}, {"p", 3.0}, {"reduction", "sum"}});
  add("margin_ranking_loss", {x({5, 3}), x({5, 3}), ints({5, 3}, 1, 1)}, {{"margin", 0.5}});
  add("hinge_embedding_loss", {x({5, 3}), ints({5, 3}, -1, 1)}, {{"reduction", "sum"}});

  add("cross_entropy", {x({5, 3}), ints({5}, 0, 2), none()});
  add("cross_entropy", {x({5, 3}), ints({5}, 0, 2), none()}, {{"reduction", "sum"}, {"label_smoothing", 0.1}});
  add("cross_entropy", {x({5, 3}), ints({5}, 0, 2), none()}, {{"reduction", "none"}});
  add("cross_entropy", {x({5, 3}), ints({5}, 0, 2), none()}, {{"ignore_index", 1}});
  add("cross_entropy", {x({5, 3}), ints({5}, 0, 2, int32), none()}, {{"ignore_index", 1}, {"label_smoothing", 0.2}});
  add("cross_entropy", {x({2, 3, 5}), ints({2, 5}, 0, 2), none()});
  add("cross_entropy", {x({2, 3, 2, 5}), ints({2, 2, 5}, 0, 2), none()},
      {{"ignore_index", 1}, {"label_smoothing", 0.1}});
  add("cross_entropy", {x({3}), ints({}, 0, 2), none()});
  // Gradients of the class weights are not part of the contract.
  add("cross_entropy", {x({5, 3}), ints({5}, 0, 2), x({3}, 0.5, 2)}, {}, false);
  add("cross_entropy", {x({2, 3, 5}), ints({2, 5}, 0, 2), x({3}, 0.5, 2)},
      {{"ignore_index", 1}, {"label_smoothing", 0.1}, {"reduction", "sum"}}, false);
  add("cross_entropy", {x({5, 3}), x({5, 3}, 0, 1), none()});
  add("cross_entropy", {x({2, 3, 5}), x({2, 3, 5}, 0, 1), x({3}, 0.5, 2)}, {{"label_smoothing", 0.1}}, false);
  add("sparse_softmax_cross_entropy", {x({5, 3}), ints({5}, 0, 2)});
  add("sparse_softmax_cross_entropy", {x({2, 5, 3}), ints({2, 5}, 0, 2)});
  add("cross_entropy_rows", {x({4, 5, 3}), ints({4, 5}, 0, 2)}, {{"ignore_index", -100}, {"label_smoothing", 0.0}},
      false);
  add("cross_entropy_rows", {x({5, 3}), ints({5}, 0, 2)}, {{"ignore_index", -100}, {"label_smoothing", 0.0}}, false);
  // The gradients of these take lse for what it is, a function of the logits: class_loss_test.
  add("cross_entropy_backward", {x({5}), x({5, 3}), ints({5}, 0, 2), x({5}, 1, 2)},
      {{"ignore_index", -100}, {"label_smoothing", 0.0}}, false);
  add("cross_entropy_backward", {x({5}), x({5, 3}), ints({5}, 0, 2), x({5}, 1, 2)},
      {{"ignore_index", 1}, {"label_smoothing", 0.2}}, false);
  add("cross_entropy_joined", {x({5, 3}), ints({5}, 0, 2), x({5}), x({5})},
      {{"ignore_index", 1}, {"label_smoothing", 0.0}}, false);
  add("class_log_sum_exp", {x({5, 3})}, {{"parts", Dims{2}}});
  add("class_log_sum_exp", {x({5, 2, 7})}, {{"parts", Dims{2}}});
  add("join_log_sum_exp", {x({5, 3})});
  add("class_picked", {x({5, 3}), ints({5}, 0, 2)}, {{"ignore_index", 1}, {"label_smoothing", 0.1}});

  add("nll_loss", {x({5, 3}), ints({5}, 0, 2), none()});
  add("nll_loss", {x({5, 3}), ints({5}, 0, 2), none()}, {{"ignore_index", 1}, {"reduction", "none"}});
  add("nll_loss", {x({2, 3, 5}), ints({2, 5}, 0, 2), x({3}, 0.5, 2)}, {{"ignore_index", 1}}, false);
  add("nll_rows", {x({5, 3}), ints({5}, 0, 2)}, {{"ignore_index", 1}});
  add("nll_rows_backward", {x({5}), ints({5}, 0, 2)}, {{"classes", 3}, {"dtype", float32}, {"ignore_index", 1}}, false);
});

}  // namespace holon::testing
