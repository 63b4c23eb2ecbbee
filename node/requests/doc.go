// Package requests performs file system operations that the coordinator requests
// from a node: locating blocks, checking that an output path is free, publishing
// a result, deleting. The coordinator holds no credentials and never waits for a
// NameNode; it stores the request and sends it to a node, or to another one if
// that node is lost.
//
// Every request is therefore safe to repeat and to perform twice concurrently,
// has a time limit, and reports what it waits for. A request is answered once;
// when sent again it is answered from memory or performed again.
package requests
