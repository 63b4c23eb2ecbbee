// Package rpc is a client of Hadoop RPC version 9 with protobuf payloads. A conn
// multiplexes calls over one connection to one server. A Client knows the servers
// of one name service, tries them round robin, waits within a limit while none can
// answer, and repeats a request under the same call id, so that the server's retry
// cache executes changes only once.
//
// Package rpc knows nothing of the methods that it carries; package namenode does.
//
// On the wire (Hadoop's RpcHeader.proto, Server.java):
//
//	"hrpc" 0x09 service-class auth-protocol
//	frame: uint32 length, delimited RpcRequestHeaderProto, delimited payloads…
//	first frame: call id -3, IpcConnectionContextProto
//	request: RequestHeaderProto, the request message
//	response: RpcResponseHeaderProto, the response message if status is 0
package rpc
