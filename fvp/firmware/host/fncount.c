/* A TCG plugin for QEMU: executed instructions of each function.
 *
 *     -plugin libfncount.so,functions=LIST
 *
 * LIST has lines "address size name" (hexadecimal), sorted by address. At exit "functions.txt" in the working folder
 * gets lines "name count". Distributions ship no qemu-plugin.h: these are the parts of version 1 of the interface that
 * are used here.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
typedef struct qemu_info_t qemu_info_t;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                           void (*callback)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb));
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*callback)(qemu_plugin_id_t id, void *data), void *data);
void qemu_plugin_register_vcpu_insn_exec_inline(void *instruction, enum qemu_plugin_op op, void *counter,
                                                uint64_t amount);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
void *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
uint64_t qemu_plugin_insn_vaddr(const void *instruction);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

typedef struct function {
  uint64_t address, size, count;
  char name[128];
} function;

static function *functions;
static size_t function_count;
static function other = {.name = "(other)"};

static function *function_at(uint64_t address) {
  size_t low = 0, high = function_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (functions[middle].address <= address) low = middle + 1;
    else high = middle;
  }
  if (low == 0 || address - functions[low - 1].address >= functions[low - 1].size) return &other;
  return &functions[low - 1];
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  (void)id;
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
    void *instruction = qemu_plugin_tb_get_insn(tb, i);
    function *f = function_at(qemu_plugin_insn_vaddr(instruction));
    qemu_plugin_register_vcpu_insn_exec_inline(instruction, QEMU_PLUGIN_INLINE_ADD_U64, &f->count, 1);
  }
}

static void put(FILE *file, const function *f) {
  if (f->count) fprintf(file, "%s %" PRIu64 "\n", f->name, f->count);
}

static void finished(qemu_plugin_id_t id, void *data) {
  (void)id, (void)data;
  FILE *file = fopen("functions.txt", "w");
  if (!file) return;
  for (size_t i = 0; i < function_count; i++) put(file, &functions[i]);
  put(file, &other);
  fclose(file);
}

static bool read_list(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) return false;
  function f = {0};
  while (fscanf(file, "%" SCNx64 " %" SCNx64 " %127s", &f.address, &f.size, f.name) == 3) {
    if (function_count % 256 == 0) functions = realloc(functions, (function_count + 256) * sizeof *functions);
    if (!functions) return false;
    functions[function_count++] = f;
  }
  fclose(file);
  return function_count > 0;
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
                                                               char **argv) {
  (void)info;
  const char *list = argc == 1 ? strstr(argv[0], "functions=") : NULL;
  if (!list || !read_list(list + strlen("functions="))) {
    fprintf(stderr, "fncount: give functions=LIST\n");
    return 1;
  }
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, finished, NULL);
  return 0;
}
