# Makes project_template.cpp of the files of examples/template_project. They are listed, so that nothing else that may lie
# in that folder becomes a part of the program.
set(_template ${PROJECT_SOURCE_DIR}/examples/template_project)
set(_code "#include \"creating/project_template.h\"\n\nnamespace fulgur::cli {\nnamespace {\nconstexpr TemplateFile kTemplate[] = {\n")
foreach(_file
    .clangd .github/workflows/ci.yml .gitignore .vscode/extensions.json .vscode/launch.json .vscode/settings.json CMakeLists.txt
    CMakePresets.json README.md configs/train.yaml src/point_classifier.cpp src/point_classifier.h src/point_data.cpp src/point_data.h
    src/program.cpp src/weight_norm.cpp src/weight_norm.h tests/components_test.cpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_template}/${_file})
  file(READ ${_template}/${_file} _text)
  string(APPEND _code "{\"${_file}\", R\"TEMPLATE(${_text})TEMPLATE\"},\n")
endforeach()
string(APPEND _code "};\n}  // namespace\n\nstd::span<const TemplateFile> project_template() { return kTemplate; }\n\n}  // namespace fulgur::cli\n")
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/project_template.cpp.new "${_code}")
file(COPY_FILE ${CMAKE_CURRENT_BINARY_DIR}/project_template.cpp.new ${CMAKE_CURRENT_BINARY_DIR}/project_template.cpp ONLY_IF_DIFFERENT)
