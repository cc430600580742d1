/* Protocol, all numbers little-endian u32 (host side: fvp/cosim.py):
 *
 *     request: magic, version, bytes of commands, weights, scratch, fast scratch; then these four
 *     reply:   magic, status (al_status), bytes of text, of scratch; then these two
 */
#include "cosim.h"

#include <string.h>

#include "semihosting.h"

#define MAGIC 0x554E4C41u /* "ALNU" */
enum { VERSION = 1 };

/* The host opens in the same order; the other way round both would wait in open for ever. */
static bool connect(al_ethosu_cosim *cosim) {
  if (cosim->open) return true;
  cosim->request_handle = sh_open(cosim->request, SH_WRITE);
  if (cosim->request_handle < 0) return false;
  cosim->reply_handle = sh_open(cosim->reply, SH_READ);
  return cosim->open = cosim->reply_handle >= 0;
}

static bool send(const al_ethosu_cosim *cosim, const void *data, uint32_t bytes) {
  return !bytes || !sh_write(cosim->request_handle, data, bytes);
}

static bool receive(const al_ethosu_cosim *cosim, void *data, uint32_t bytes) {
  return !bytes || !sh_read(cosim->reply_handle, data, bytes);
}

/* As much as fits; the rest is read and dropped. */
static bool receive_text(const al_ethosu_cosim *cosim, uint32_t bytes, char *text, uint32_t size) {
  uint32_t keep = bytes < size - 1 ? bytes : size - 1;
  if (!receive(cosim, text, keep)) return false;
  text[keep] = 0;
  for (bytes -= keep; bytes;) {
    char rest[64];
    uint32_t n = bytes < sizeof rest ? bytes : (uint32_t)sizeof rest;
    if (!receive(cosim, rest, n)) return false;
    bytes -= n;
  }
  return true;
}

static al_status run(void *state, const al_ethosu_job *job, char *text, size_t text_size) {
  al_ethosu_cosim *cosim = state;
  uint32_t request[6] = {
      MAGIC, VERSION, job->command_bytes, job->weight_bytes, job->scratch_bytes, job->fast_scratch_bytes,
  };
  uint32_t reply[4];
  if (!connect(cosim) || !send(cosim, request, sizeof request) || !send(cosim, job->commands, job->command_bytes) ||
      !send(cosim, job->weights, job->weight_bytes) || !send(cosim, job->scratch, job->scratch_bytes) ||
      !send(cosim, job->fast_scratch, job->fast_scratch_bytes) || !receive(cosim, reply, sizeof reply))
    return AL_HOST_GONE;
  uint32_t status = reply[1], scratch = reply[3];
  if (reply[0] != MAGIC || scratch > job->scratch_bytes || (!status && scratch != job->scratch_bytes))
    return AL_HOST_GONE;
  if (!receive_text(cosim, reply[2], text, (uint32_t)text_size) || !receive(cosim, job->scratch, scratch))
    return AL_HOST_GONE;
  return !status || (status >= AL_NPU_MISSING && status <= AL_NPU_ACCESS) ? (al_status)status : AL_NPU_MODEL;
}

static al_status missing(void *state, const al_ethosu_job *job, char *text, size_t text_size) {
  (void)state, (void)job, (void)text, (void)text_size;
  return AL_NPU_MISSING;
}

al_npu al_ethosu_cosim_npu(al_ethosu_cosim *cosim) { return (al_npu){run, cosim}; }

al_npu al_ethosu_choose(al_ethosu_driver *driver, al_ethosu_cosim *cosim) {
  if (driver && al_ethosu_probe(driver)) return al_ethosu_driver_npu(driver);
  if (cosim && cosim->request && cosim->reply) return al_ethosu_cosim_npu(cosim);
  return (al_npu){missing, NULL};
}
