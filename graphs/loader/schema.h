/* graphs/loader/schema.h: what graph files may hold, for people and for editors.
 */
#ifndef GR_GRAPHS_LOADER_SCHEMA_H
#define GR_GRAPHS_LOADER_SCHEMA_H

#include "runtime/base/base.h"

/* JSON Schema of graph files, from the ops' key tables. */
void gr_graph_schema(gr_str *out);

/* `graphrun ops`: every op with keys and fields, every function. */
void gr_graph_ops(gr_str *out);

#endif
