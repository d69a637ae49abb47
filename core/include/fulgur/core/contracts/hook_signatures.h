#pragma once

#include <type_traits>

// The functions that a class may override, as HOOK(name, result, (arguments), const or nothing). They repeat the base's
// declarations, so that a compiler error can show them. tests/trainer/loops/hooks_declared_test.cpp compares them
// with the headers.

// The optional steps of LightningModule.
#define FULGUR_STEP_SIGNATURES(HOOK)                                                                            \
  HOOK(validation_step, fulgur::Outputs, (const fulgur::Batch& batch, int64_t batch_idx, int64_t loader_idx), ) \
  HOOK(test_step, fulgur::Outputs, (const fulgur::Batch& batch, int64_t batch_idx, int64_t loader_idx), )       \
  HOOK(predict_step, fulgur::Outputs, (const fulgur::Batch& batch, int64_t batch_idx, int64_t loader_idx), )
// Those of LightningModule that exist for each kind of evaluation.
#define FULGUR_MODULE_EVALUATION_SIGNATURES(HOOK, kind)                                                \
  HOOK(on_##kind##_model_eval, void, (), )                                                             \
  HOOK(on_##kind##_model_train, void, (), )                                                            \
  HOOK(on_##kind##_start, void, (), )                                                                  \
  HOOK(on_##kind##_end, void, (), )                                                                    \
  HOOK(on_##kind##_epoch_start, void, (), )                                                            \
  HOOK(on_##kind##_epoch_end, void, (), )                                                              \
  HOOK(on_##kind##_batch_start, void, (const fulgur::Batch&, int64_t batch_idx, int64_t loader_idx), ) \
  HOOK(on_##kind##_batch_end, void,                                                                    \
       (const fulgur::Outputs&, const fulgur::Batch&, int64_t batch_idx, int64_t loader_idx), )
// Members of LightningModule.
#define FULGUR_MODULE_SIGNATURES(HOOK)                                                                                 \
  HOOK(training_step, fulgur::StepOutput, (const fulgur::Batch& batch, int64_t batch_idx), )                           \
  FULGUR_STEP_SIGNATURES(HOOK)                                                                                         \
  HOOK(configure_optimizers, fulgur::OptimizerPlan, (), )                                                              \
  HOOK(automatic_optimization, bool, (), const)                                                                        \
  HOOK(configure_callbacks, std::vector<std::shared_ptr<fulgur::Callback>>, (), )                                      \
  HOOK(stages, fulgur::LayerChain, (), )                                                                               \
  HOOK(tensor_plan, fulgur::TensorPlan, (), const)                                                                     \
  HOOK(configure_model, void, (), )                                                                                    \
  HOOK(train_dataloader, fulgur::Loaders, (), )                                                                        \
  HOOK(val_dataloader, fulgur::Loaders, (), )                                                                          \
  HOOK(test_dataloader, fulgur::Loaders, (), )                                                                         \
  HOOK(predict_dataloader, fulgur::Loaders, (), )                                                                      \
  HOOK(num_tokens, std::optional<int64_t>, (const fulgur::Batch&), const)                                              \
  HOOK(has_trained_weights, bool, (), const)                                                                           \
  HOOK(prepare_data, void, (), )                                                                                       \
  HOOK(prepare_data_per_node, bool, (), const)                                                                         \
  HOOK(setup, void, (fulgur::TrainerFn), )                                                                             \
  HOOK(teardown, void, (fulgur::TrainerFn), )                                                                          \
  HOOK(on_fit_start, void, (), )                                                                                       \
  HOOK(on_fit_end, void, (), )                                                                                         \
  HOOK(on_train_start, void, (), )                                                                                     \
  HOOK(on_train_end, void, (), )                                                                                       \
  HOOK(on_train_epoch_start, void, (), )                                                                               \
  HOOK(on_train_epoch_end, void, (), )                                                                                 \
  HOOK(on_train_batch_start, int, (const fulgur::Batch&, int64_t batch_idx), )                                         \
  HOOK(on_train_batch_end, void, (const fulgur::StepOutput&, const fulgur::Batch&, int64_t batch_idx), )               \
  HOOK(on_before_batch_transfer, fulgur::Batch, (fulgur::Batch batch, int64_t loader_idx), )                           \
  HOOK(transfer_batch_to_device, fulgur::Batch, (fulgur::Batch batch, const at::Device& device, int64_t loader_idx), ) \
  HOOK(on_after_batch_transfer, fulgur::Batch, (fulgur::Batch batch, int64_t loader_idx), )                            \
  HOOK(on_before_zero_grad, void, (fulgur::Optimizer&), )                                                              \
  HOOK(optimizer_zero_grad, void, (int64_t epoch, int64_t batch_idx, fulgur::Optimizer & optimizer), )                 \
  HOOK(on_before_backward, void, (const fulgur::Tensor& loss), )                                                       \
  HOOK(backward, void, (const fulgur::Tensor& loss, const fulgur::BackwardOptions& options), )                         \
  HOOK(on_after_backward, void, (), )                                                                                  \
  HOOK(on_before_optimizer_step, void, (fulgur::Optimizer&), )                                                         \
  HOOK(optimizer_step, void,                                                                                           \
       (int64_t epoch, int64_t batch_idx, fulgur::OptimizerHandle & optimizer, const fulgur::Closure& closure), )      \
  HOOK(lr_scheduler_step, void, (fulgur::LrScheduler & scheduler, std::optional<double> metric), )                     \
  HOOK(configure_gradient_clipping, void,                                                                              \
       (fulgur::Optimizer & optimizer, std::optional<double> clip_val, fulgur::ClipAlgorithm algorithm), )             \
  HOOK(on_validation_model_zero_grad, void, (), )                                                                      \
  FULGUR_MODULE_EVALUATION_SIGNATURES(HOOK, validation)                                                                \
  FULGUR_MODULE_EVALUATION_SIGNATURES(HOOK, test)                                                                      \
  FULGUR_MODULE_EVALUATION_SIGNATURES(HOOK, predict)                                                                   \
  HOOK(on_save_checkpoint, void, (fulgur::StateTree & checkpoint), )                                                   \
  HOOK(on_load_checkpoint, void, (const fulgur::StateTree& checkpoint), )
// Those of Callback that exist for each kind of evaluation.
#define FULGUR_CALLBACK_EVALUATION_SIGNATURES(HOOK, kind)                                    \
  HOOK(on_##kind##_start, void, (fulgur::RunContext&), )                                     \
  HOOK(on_##kind##_end, void, (fulgur::RunContext&), )                                       \
  HOOK(on_##kind##_epoch_start, void, (fulgur::RunContext&), )                               \
  HOOK(on_##kind##_epoch_end, void, (fulgur::RunContext&), )                                 \
  HOOK(on_##kind##_batch_start, void,                                                        \
       (fulgur::RunContext&, const fulgur::Batch&, int64_t batch_idx, int64_t loader_idx), ) \
  HOOK(on_##kind##_batch_end, void,                                                          \
       (fulgur::RunContext&, const fulgur::Outputs&, const fulgur::Batch&, int64_t batch_idx, int64_t loader_idx), )
// Members of Callback.
#define FULGUR_CALLBACK_SIGNATURES(HOOK)                                                             \
  HOOK(state_key, std::string, (), const)                                                            \
  HOOK(phase, fulgur::Phase, (), const)                                                              \
  HOOK(required_metric, std::optional<std::string>, (), const)                                       \
  HOOK(monitored_metrics, std::vector<std::string>, (), const)                                       \
  HOOK(saves_on_exception, bool, (), const)                                                          \
  HOOK(writes_predictions, bool, (), const)                                                          \
  HOOK(state, fulgur::StateTree, (), const)                                                          \
  HOOK(load_state, void, (const fulgur::StateTree&), )                                               \
  HOOK(setup, void, (fulgur::RunContext&, fulgur::TrainerFn), )                                      \
  HOOK(teardown, void, (fulgur::RunContext&, fulgur::TrainerFn), )                                   \
  HOOK(on_exception, void, (fulgur::RunContext&, const std::exception&), )                           \
  HOOK(resume_candidate, std::optional<std::filesystem::path>, (), const)                            \
  HOOK(on_fit_start, void, (fulgur::RunContext&), )                                                  \
  HOOK(on_fit_end, void, (fulgur::RunContext&), )                                                    \
  HOOK(on_sanity_check_start, void, (fulgur::RunContext&), )                                         \
  HOOK(on_sanity_check_end, void, (fulgur::RunContext&), )                                           \
  HOOK(on_train_start, void, (fulgur::RunContext&), )                                                \
  HOOK(on_train_end, void, (fulgur::RunContext&), )                                                  \
  HOOK(on_train_epoch_start, void, (fulgur::RunContext&), )                                          \
  HOOK(on_train_epoch_end, void, (fulgur::RunContext&), )                                            \
  HOOK(on_train_batch_start, void, (fulgur::RunContext&, const fulgur::Batch&, int64_t batch_idx), ) \
  HOOK(on_train_batch_end, void,                                                                     \
       (fulgur::RunContext&, const fulgur::StepOutput&, const fulgur::Batch&, int64_t batch_idx), )  \
  HOOK(on_before_zero_grad, void, (fulgur::RunContext&, fulgur::Optimizer&), )                       \
  HOOK(on_before_backward, void, (fulgur::RunContext&, const fulgur::Tensor& loss), )                \
  HOOK(on_after_backward, void, (fulgur::RunContext&), )                                             \
  HOOK(on_before_optimizer_step, void, (fulgur::RunContext&, fulgur::Optimizer&), )                  \
  FULGUR_CALLBACK_EVALUATION_SIGNATURES(HOOK, validation)                                            \
  FULGUR_CALLBACK_EVALUATION_SIGNATURES(HOOK, test)                                                  \
  FULGUR_CALLBACK_EVALUATION_SIGNATURES(HOOK, predict)                                               \
  HOOK(on_save_checkpoint, void, (fulgur::RunContext&, fulgur::StateTree & checkpoint), )            \
  HOOK(on_load_checkpoint, void, (fulgur::RunContext&, const fulgur::StateTree& checkpoint), )       \
  HOOK(on_checkpoint_published, void, (fulgur::RunContext&, const fulgur::CheckpointInfo&), )        \
  HOOK(on_checkpoint_failed, void, (fulgur::RunContext&, const fulgur::CheckpointInfo&, const std::exception&), )
// Members of DataModule.
#define FULGUR_DATA_SIGNATURES(HOOK)                                                                            \
  HOOK(prepare_data, void, (), )                                                                                \
  HOOK(prepare_data_per_node, bool, (), const)                                                                  \
  HOOK(setup, void, (fulgur::TrainerFn fn), )                                                                   \
  HOOK(train_dataloader, fulgur::Loaders, (), )                                                                 \
  HOOK(val_dataloader, fulgur::Loaders, (), )                                                                   \
  HOOK(test_dataloader, fulgur::Loaders, (), )                                                                  \
  HOOK(predict_dataloader, fulgur::Loaders, (), )                                                               \
  HOOK(loaders, fulgur::Loaders, (fulgur::RunningStage stage), )                                                \
  HOOK(on_before_batch_transfer, fulgur::Batch,                                                                 \
       (fulgur::LightningModule & module, fulgur::Batch batch, int64_t loader_idx), )                           \
  HOOK(transfer_batch_to_device, fulgur::Batch,                                                                 \
       (fulgur::LightningModule & module, fulgur::Batch batch, const at::Device& device, int64_t loader_idx), ) \
  HOOK(on_after_batch_transfer, fulgur::Batch,                                                                  \
       (fulgur::LightningModule & module, fulgur::Batch batch, int64_t loader_idx), )                           \
  HOOK(batch_transforms, const fulgur::BatchTransforms*, (fulgur::RunningStage stage), const)                   \
  HOOK(teardown, void, (fulgur::TrainerFn fn), )                                                                \
  HOOK(on_exception, void, (const std::exception& error), )                                                     \
  HOOK(exported_values, fulgur::StateTree, (), const)                                                           \
  HOOK(why_not_exported, std::string, (std::string_view), const)                                                \
  HOOK(prediction_texts, fulgur::PredictionTexts, (const fulgur::PredictedRow& row), const)                     \
  HOOK(state, fulgur::StateTree, (), const)                                                                     \
  HOOK(load_state, void, (const fulgur::StateTree&), )

namespace fulgur::detail {

/// The signature, without the class, of a pointer to a member function, and the same pointer type for another class.
template <class Pointer>
struct HookPointer;
#define FULGUR_HOOK_POINTER(is_const, qualifiers)                   \
  template <class R, class Class, class... Args>                    \
  struct HookPointer<R (Class::*)(Args...) qualifiers> {            \
    using Signature = R (*)(std::bool_constant<is_const>, Args...); \
    template <class T>                                              \
    using Of = R (T::*)(Args...) qualifiers;                        \
  };
FULGUR_HOOK_POINTER(false, )
FULGUR_HOOK_POINTER(false, noexcept)
FULGUR_HOOK_POINTER(true, const)
FULGUR_HOOK_POINTER(true, const noexcept)
#undef FULGUR_HOOK_POINTER

}  // namespace fulgur::detail

/// False if `hook` in T (derived from Base) is neither Base's member nor an override of it: then it hides the base's
/// member, and is never called. A member that T made inaccessible is not checked.
#define FULGUR_HOOK_FITS(T, Base, hook)                                                                      \
  ([]<class T_>() {                                                                                          \
    using Hook_ = ::fulgur::detail::HookPointer<decltype(&Base::hook)>;                                      \
    if constexpr (requires { static_cast<typename Hook_::template Of<T_>>(&T_::hook); })                     \
      return true; /* alone or among overloads */                                                            \
    else if constexpr (requires { typename ::fulgur::detail::HookPointer<decltype(&T_::hook)>::Signature; }) \
      return std::is_same_v<typename ::fulgur::detail::HookPointer<decltype(&T_::hook)>::Signature,          \
                            typename Hook_::Signature>; /* of a virtual base */                              \
    else                                                                                                     \
      return !requires { &T_::hook; };                                                                       \
  }.template operator()<T>())

#define FULGUR_TEXT_(...) #__VA_ARGS__

/// How an override of a hook is declared.
#define FULGUR_HOOK_TEXT(hook, result, arguments, qualifiers) \
#result " " #hook #arguments " " FULGUR_TEXT_(qualifiers override)

/// Checks a list of signatures: a compiler error names the one that a member of T does not match.
#define FULGUR_CHECK_HOOK(T, Base, hook, result, arguments, qualifiers) \
  static_assert(FULGUR_HOOK_FITS(T, Base, hook),                                                                     \
                "the class has a `" #hook "` that does not override " #Base "'s, so it would never be called. "      \
                "Expected: `" FULGUR_HOOK_TEXT(hook, result, arguments, qualifiers) "`. A member that is meant to " \
                "be something else needs another name, or `using fulgur::" #Base "::" #hook ";` next to it.");
