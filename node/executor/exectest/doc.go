// Package exectest is the conformance suite that every executor passes. It needs a
// platform that has an executor.
package exectest
