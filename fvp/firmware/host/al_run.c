/* al_run model.pte [input.bin...]: executes the first method once with the bytes of each input tensor (zeros if no file
 * is given), and writes every output tensor to output-N.bin. Exit status 0, or 1 with the error's text. */
#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *read_file(const char *path, size_t *size) {
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  fseek(f, 0, SEEK_END);
  *size = (size_t)ftell(f);
  rewind(f);
  void *data = malloc(*size + 1);
  if (data && fread(data, 1, *size, f) != *size) *size = 0;
  fclose(f);
  return data;
}

static int failed(const al_error *error) {
  char text[256];
  al_error_text(error, text, sizeof text);
  printf("error %d: %s\n", (int)error->status, text);
  return 1;
}

static int execute(al_host *h, int files, char **paths) {
  al_error error;
  if (al_host_bind(h, &error)) return failed(&error);
  for (int i = 0; i < files; i++) {
    size_t size;
    void *data = read_file(paths[i], &size);
    const al_value *v = al_input(al_host_method(h), (uint32_t)i);
    if (!data || !v || v->type != AL_TENSOR || size != al_nbytes(v->t)) {
      printf("error: %s does not fit input %d\n", paths[i], i);
      return 1;
    }
    memcpy(v->t->data, data, size);
    free(data);
  }
  if (al_execute(al_host_method(h), &error)) return failed(&error);
  const al_value *v;
  for (uint32_t i = 0; (v = al_output(al_host_method(h), i)) != NULL; i++) {
    char name[32];
    snprintf(name, sizeof name, "output-%u.bin", i);
    FILE *f = v->type == AL_TENSOR ? fopen(name, "wb") : NULL;
    if (!f) continue;
    fwrite(v->t->data, 1, al_nbytes(v->t), f);
    fclose(f);
  }
  return 0;
}

int main(int argc, char **argv) {
  size_t size;
  void *pte = argc > 1 ? read_file(argv[1], &size) : NULL;
  if (!pte) {
    printf("al_run model.pte [input.bin...]\n");
    return 2;
  }
  al_error error;
  al_host_options options = {0};
  al_host *h = al_host_open(pte, size, NULL, &options, &error);
  free(pte);
  int status = al_host_method(h) ? execute(h, argc - 2, argv + 2) : failed(&error);
  al_host_close(h);
  return status;
}
