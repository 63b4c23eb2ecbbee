// Package coordclient finds the coordinator that leads, for its clients: commands
// and node daemons. A client has the addresses of several coordinators. A request
// goes to the one that answered last; one that does not lead names the leader, and
// one that does not answer is left for the next in the list.
//
// Transport is an http.RoundTripper, and Retrier a connect.Interceptor. Use both in
// one client, with Base as its URL.
package coordclient
