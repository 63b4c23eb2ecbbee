// Package rpc speaks Hadoop RPC version 9 with protobuf payloads, as a client:
// one connection to one server, multiplexed (Conn), and over it a Client that
// knows several servers of one name service, tries them in turn, waits within
// a limit while none can answer, and repeats a request under its old call id so
// that the server's retry cache makes changes happen once.
//
// It knows nothing of the methods it carries; package namenode does.
//
// On the wire (Hadoop's RpcHeader.proto, Server.java):
//
//	"hrpc" 0x09 service-class auth-protocol
//	frame: uint32 length, delimited RpcRequestHeaderProto, delimited payloads…
//	first frame: call id -3, IpcConnectionContextProto
//	request: RequestHeaderProto, the request message
//	response: RpcResponseHeaderProto, the response message if status is 0
package rpc
