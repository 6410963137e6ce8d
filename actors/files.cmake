# The stock roles of language-model post-training and what a run of them needs.
troupe_library(troupe_roles
  SOURCES
    role.c run_dir.c run_reopen.c rl_run.c drive.c
    rollout.c reference.c reward_role.c
    policy.c policy_open.c policy_state.c policy_mirror.c policy_publish.c policy_step.c policy_record.c policy_eval.c policy_checkpoint.c
  INCLUDES ${CMAKE_CURRENT_SOURCE_DIR}/include
  LIBS troupe_lm troupe_lm_text troupe_reward troupe_rl troupe_stream troupe_runtime PkgConfig::JANSSON m)
target_compile_definitions(troupe_roles PRIVATE TROUPE_VERSION="${PROJECT_VERSION}")

# The command line: the one place that names all parts.
troupe_program(troupe
  SOURCES main.c
  LIBS troupe_audit troupe_runs troupe_simulation troupe_lm_cli troupe_model_info troupe_cli_tokenize troupe_cli)
target_compile_definitions(troupe PRIVATE TROUPE_VERSION="${PROJECT_VERSION}")
