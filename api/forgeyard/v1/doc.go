// Package forgeyardv1 is what is said on the wire: the services of a node, of its
// peers and of the central daemon, and their messages. The .proto files are the
// source; all else here is generated from them with `make generate`.
//
// A released field keeps its number and its meaning; a word in a string field that
// enumerates is only ever added.
package forgeyardv1
