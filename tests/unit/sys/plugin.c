/* A shared library with one piece of static data, for module_test.c. */
extern const int plugin_data[4];

__attribute__((visibility("default"))) const int plugin_data[4] = {7, 11, 13, 17};
