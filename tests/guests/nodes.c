/* Graphs by hand: nodes, edges, clones, numbers, and objects that live as long as a graph. */
#include "graph.h"
#include "tell.h"

typedef struct {
    unsigned char from, to, type, reserved[5];
} Edge;
_Static_assert(sizeof(Edge) == 8, "as cuda.h");

enum { EMPTY = 5, CHILD = 4, FILL = 2, MOVE = 1, NO_SYNC = 1 };

static CUcontext ctx;
static CUdeviceptr words;

static CUgraphNode empty(CUgraph graph, CUgraphNode behind) {
    CUgraphNode node;
    CU(cuGraphAddEmptyNode(&node, graph, &behind, behind ? 1 : 0));
    return node;
}

static int has(CUgraphNode *list, size_t count, CUgraphNode node) {
    for (size_t i = 0; i < count; i++)
        if (list[i] == node) return 1;
    return 0;
}

/* a before b and c, both before d; then without some edges, in both forms of each function. */
static void edges(void) {
    CUgraph graph, other;
    CUgraphNode list[8], from[8], to[8], a, b, c, d, strange;
    Edge data[8], plain = {0};
    size_t count = 0;
    OK(cuGraphCreate(&graph, 0));
    FAILS(INVALID_VALUE, cuGraphCreate(&other, 7));
    FAILS(INVALID_VALUE, cuGraphCreate(NULL, 0));
    OK(cuGraphCreate(&other, 0));
    a = empty(graph, NULL), b = empty(graph, a), c = empty(graph, NULL), d = empty(graph, b);
    strange = empty(other, NULL);
    OK(cuGraphAddDependencies(graph, &a, &c, 1));
    OK(cuGraphAddDependencies_v2(graph, &c, &d, &plain, 1));
    OK(cuGraphGetNodes(graph, NULL, &count));
    IS(4, count);
    count = 8;
    OK(cuGraphGetNodes(graph, list, &count));
    IS(4, count);
    EXPECT(has(list, 4, a) && has(list, 4, b) && has(list, 4, c) && has(list, 4, d));
    EXPECT(list[4] == NULL && list[7] == NULL);
    count = 2;
    OK(cuGraphGetNodes(graph, list, &count));
    IS(2, count);
    OK(cuGraphGetRootNodes(graph, NULL, &count));
    IS(1, count);
    OK(cuGraphGetRootNodes(graph, list, &count));
    EXPECT(list[0] == a);
    OK(cuGraphGetEdges(graph, NULL, NULL, &count));
    IS(4, count);
    count = 8;
    OK(cuGraphGetEdges(graph, from, to, &count));
    IS(4, count);
    int into_d = 0;
    for (size_t i = 0; i < count; i++) into_d += to[i] == d && (from[i] == b || from[i] == c);
    IS(2, into_d);
    count = 8;
    memset(data, 0xff, sizeof data);
    OK(cuGraphGetEdges_v2(graph, from, to, data, &count));
    IS(4, count);
    EXPECT(!memcmp(&data[3], &plain, sizeof plain));
    OK(cuGraphNodeGetDependencies(d, NULL, &count));
    IS(2, count);
    OK(cuGraphNodeGetDependencies(d, list, &count));
    EXPECT(has(list, 2, b) && has(list, 2, c));
    count = 8;
    OK(cuGraphNodeGetDependencies_v2(d, list, data, &count));
    IS(2, count);
    count = 8;
    OK(cuGraphNodeGetDependentNodes(a, list, &count));
    IS(2, count);
    EXPECT(has(list, 2, b) && has(list, 2, c));
    count = 8;
    OK(cuGraphNodeGetDependentNodes_v2(a, list, data, &count));
    IS(2, count);
    /* Missing edges, and duplicate edges. */
    FAILS(INVALID_VALUE, cuGraphAddDependencies(graph, &a, &c, 1));
    FAILS(INVALID_VALUE, cuGraphRemoveDependencies(graph, &a, &d, 1));
    FAILS(INVALID_VALUE, cuGraphAddDependencies(graph, &a, &strange, 1));
    FAILS(INVALID_VALUE, cuGraphAddDependencies(graph, NULL, &a, 1));
    OK(cuGraphAddDependencies(graph, NULL, NULL, 0));
    OK(cuGraphRemoveDependencies(graph, &a, &c, 1));
    OK(cuGraphRemoveDependencies_v2(graph, &c, &d, &plain, 1));
    OK(cuGraphGetEdges(graph, NULL, NULL, &count));
    IS(2, count);
    OK(cuGraphGetRootNodes(graph, NULL, &count));
    IS(2, count);
    /* The destruction of a node also removes its edges. */
    OK(cuGraphDestroyNode(b));
    OK(cuGraphGetEdges(graph, NULL, NULL, &count));
    IS(0, count);
    FAILS(INVALID_VALUE, cuGraphDestroyNode(b));
    FAILS(INVALID_VALUE, cuGraphNodeGetDependencies(b, NULL, &count));
    FAILS(INVALID_VALUE, cuGraphGetNodes(graph, list, NULL));
    OK(cuGraphDestroy(other));
    FAILS(INVALID_VALUE, cuGraphDestroy(other));
    FAILS(INVALID_VALUE, cuGraphGetNodes(other, NULL, &count));
    FAILS(INVALID_VALUE, cuGraphAddEmptyNode(&a, other, NULL, 0));
    FAILS(INVALID_VALUE, cuGraphAddEmptyNode(NULL, graph, NULL, 0));
    FAILS(INVALID_VALUE, cuGraphAddEmptyNode(&a, graph, &strange, 1));
    OK(cuGraphDestroy(graph));
}

/* A cycle cannot be created, or at least not instantiated. */
static void circles(void) {
    CUgraph graph;
    CUgraphExec exec;
    CU(cuGraphCreate(&graph, 0));
    CUgraphNode a = empty(graph, NULL), b = empty(graph, a);
    CUresult added = cuGraphAddDependencies(graph, &b, &a, 1);
    TELL(added);
    if (!added) FAILS(INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
}

static void copies(void) {
    CUgraph graph, child, copy, inner, of;
    CUgraphNode nodes[3], found, list[4];
    unsigned id[3] = {0}, local[2] = {99, 99};
    unsigned long long tool[2] = {0};
    size_t count = 4;
    int type = -1;
    FillParams fill = {words, 0, 7, 4, 1, 1};
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphCreate(&child, 0));
    OK(cuGraphAddMemsetNode(&nodes[0], child, NULL, 0, &fill, ctx));
    OK(cuGraphAddEmptyNode(&nodes[1], graph, NULL, 0));
    OK(cuGraphAddChildGraphNode(&nodes[2], graph, &nodes[1], 1, child));
    FAILS(INVALID_VALUE, cuGraphAddChildGraphNode(&found, graph, NULL, 0, NULL));
    OK(cuGraphNodeGetType(nodes[0], &type));
    IS(FILL, type);
    OK(cuGraphNodeGetType(nodes[1], &type));
    IS(EMPTY, type);
    OK(cuGraphNodeGetType(nodes[2], &type));
    IS(CHILD, type);
    FAILS(INVALID_VALUE, cuGraphNodeGetType(nodes[0], NULL));
    FAILS(INVALID_VALUE, cuGraphNodeGetType(NULL, &type));
    /* The child is a copy. */
    OK(cuGraphChildGraphNodeGetGraph(nodes[2], &inner));
    EXPECT(inner != child);
    FAILS(INVALID_VALUE, cuGraphChildGraphNodeGetGraph(nodes[1], &inner));
    OK(cuGraphGetNodes(inner, list, &count));
    IS(1, count);
    EXPECT(list[0] != nodes[0]);
    OK(cuGraphClone(&copy, graph));
    OK(cuGraphNodeFindInClone(&found, nodes[1], copy));
    EXPECT(found != nodes[1]);
    FAILS(INVALID_VALUE, cuGraphNodeFindInClone(&found, nodes[0], copy));
    FAILS(INVALID_VALUE, cuGraphNodeFindInClone(&found, nodes[1], child));
    FAILS(INVALID_VALUE, cuGraphClone(NULL, graph));
    FAILS(INVALID_VALUE, cuGraphClone(&of, NULL));
    /* Numbers. */
    OK(cuGraphGetId(graph, &id[0]));
    OK(cuGraphGetId(copy, &id[1]));
    OK(cuGraphGetId(child, &id[2]));
    EXPECT(id[0] != id[1] && id[1] != id[2] && id[0] != id[2]);
    OK(cuGraphNodeGetLocalId(nodes[1], &local[0]));
    OK(cuGraphNodeGetLocalId(nodes[2], &local[1]));
    EXPECT(local[0] != local[1]);
    OK(cuGraphNodeGetToolsId(nodes[1], &tool[0]));
    OK(cuGraphNodeGetToolsId(nodes[2], &tool[1]));
    EXPECT(tool[0] != tool[1]);
    OK(cuGraphNodeGetContainingGraph(nodes[2], &of));
    EXPECT(of == graph);
    OK(cuGraphNodeGetContainingGraph(nodes[0], &of));
    EXPECT(of == child);
    FAILS(INVALID_VALUE, cuGraphGetId(graph, NULL));
    FAILS(INVALID_VALUE, cuGraphNodeGetLocalId(NULL, &local[0]));
    FAILS(INVALID_VALUE, cuGraphNodeGetToolsId(nodes[1], NULL));
    FAILS(INVALID_VALUE, cuGraphNodeGetContainingGraph(nodes[1], NULL));
    char path[] = "/tmp/nodes-XXXXXX", text[4096] = {0};
    int file = mkstemp(path);
    OK(cuGraphDebugDotPrint(graph, path, 0));
    EXPECT(read(file, text, sizeof text - 1) > 0 && strstr(text, "digraph"));
    close(file);
    unlink(path);
    FAILS(INVALID_VALUE, cuGraphDebugDotPrint(graph, NULL, 0));
    OK(cuGraphDestroy(copy));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(child));
}

static volatile int destroyed;
static void destroy(void *add) { destroyed += *(int *)add; }

/* Destructors run some time after the last release. */
static int comes(int wanted) {
    for (int i = 0; i < 5000 && destroyed != wanted; i++) usleep(1000);
    return destroyed == wanted;
}

static void objects(void) {
    static int one = 1, ten = 10;
    CUuserObject object, kept;
    CUgraph graph, copy;
    CUgraphExec exec;
    CUstream stream;
    CU(cuStreamCreate(&stream, 1));
    FAILS(INVALID_VALUE, cuUserObjectCreate(&object, &one, destroy, 1, 0));
    FAILS(INVALID_VALUE, cuUserObjectCreate(&object, &one, destroy, 0, NO_SYNC));
    FAILS(INVALID_VALUE, cuUserObjectCreate(&object, &one, NULL, 1, NO_SYNC));
    FAILS(INVALID_VALUE, cuUserObjectCreate(NULL, &one, destroy, 1, NO_SYNC));
    OK(cuUserObjectCreate(&object, &one, destroy, 2, NO_SYNC));
    OK(cuUserObjectRetain(object, 2));
    OK(cuUserObjectRelease(object, 3));
    EXPECT(destroyed == 0);
    OK(cuUserObjectRelease(object, 1));
    EXPECT(comes(1));
    OK(cuUserObjectCreate(&kept, &ten, destroy, 1, NO_SYNC));
    CU(cuGraphCreate(&graph, 0));
    OK(cuGraphRetainUserObject(graph, kept, 1, MOVE));
    OK(cuGraphRetainUserObject(graph, kept, 2, 0));
    OK(cuGraphReleaseUserObject(graph, kept, 2));
    FAILS(INVALID_VALUE, cuGraphRetainUserObject(graph, kept, 1, 9));
    FAILS(INVALID_VALUE, cuGraphRetainUserObject(graph, kept, 0, 0));
    OK(cuGraphClone(&copy, graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(copy));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    EXPECT(destroyed == 1);
    /* The last holder. */
    OK(cuGraphExecDestroy(exec));
    EXPECT(comes(11));
    OK(cuStreamDestroy_v2(stream));
}

int main(void) {
    ctx = begin();
    CU(cuMemAlloc_v2(&words, 64));
    edges();
    circles();
    copies();
    objects();
    return done("nodes");
}
