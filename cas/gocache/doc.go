// Package gocache is a build cache for the go command (GOCACHEPROG) that shares what it
// holds with a site: in a folder of its own first, then in a node's build cache over HTTP.
//
//	get   folder ─▶ node, which asks its members ─▶ miss
//	put   folder, answered at once ─▶ node, in the background until the go command ends
//
// A node that does not answer costs a moment once: after a few failures it is not asked
// again in this run, and the folder serves alone. Bytes from a node are hashed before they
// have their place: the go command names an output by its SHA-256.
//
// The package decides nothing about who may write; a node refuses what has no token, and
// then it is read from only.
package gocache
