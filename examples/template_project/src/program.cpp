// main() and the command line come from fulgur::main. An executable needs at least one file.
