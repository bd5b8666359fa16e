/* runtime/api/version.h: what this build is. Threads: any. */
#ifndef GR_RUNTIME_API_VERSION_H
#define GR_RUNTIME_API_VERSION_H

/* "graphrun 0.1.0 (devices: cpu)", and lines with the compiler, the toolkit and the features; no newline at
 * the end. The text stays. */
const char *gr_version(void);

#endif
