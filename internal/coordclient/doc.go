// Package coordclient finds the leading coordinator for its clients: commands and node daemons. A
// client has the addresses of several coordinators. A request goes to the coordinator that answered
// last. A coordinator that does not lead names the leader. If a coordinator does not answer, the
// client tries the next one in the list.
//
// Transport is an http.RoundTripper, and Retrier a connect.Interceptor. Use both in
// one client, with Base as its URL.
package coordclient
