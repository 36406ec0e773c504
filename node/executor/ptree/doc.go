// Package ptree starts one program and owns the tree of processes that grows from
// it: who is in it, how its output is read, and how it ends for certain.
//
// Goroutines of a tree: one starts the program and waits for it, locked to its
// thread for as long as the program runs, because the namespaces, the control
// group and the no-new-privileges bit of the start are set on that thread alone,
// and because a parent-death signal comes when the starting *thread* ends; the
// thread is thrown away afterwards. Two more copy the outputs.
//
// A tree has a control group where the machine gives one. Without, it is found by
// session, ancestry and a mark in the environment, and the runner adopts orphans
// (PR_SET_CHILD_SUBREAPER); then no limit holds. Only Linux has an implementation.
package ptree
