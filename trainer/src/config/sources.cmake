# The config's part of the trainer component, relative to trainer/.
set(FULGUR_CONFIG_SOURCES
  src/config/adapters.cpp
  src/config/checkpoint_loading.cpp
  src/config/config.cpp
  src/config/describe.cpp
  src/config/interpolate.cpp
  src/config/json_schema.cpp
  src/config/links.cpp
  src/config/merge.cpp
  src/config/overrides.cpp
  src/config/plugins.cpp
  src/config/pretrained_weights.cpp
  src/config/renamed_options.cpp
  src/config/trainer_options.cpp
  src/config/weights_config.cpp
  src/config/yaml.cpp)
