// Package carry carries raft's calls over streams: it writes and reads the messages, keeps
// connections, and matches answers to calls. It speaks what hashicorp/raft's own
// NetworkTransport speaks, byte for byte, so nodes with either form one group.
//
// It differs in how often an entry changes hands on its way. In raft's transport an answer
// is read by one goroutine, handed to another, and by our guards to a third; a call that
// comes in passes a goroutine between its connection's and raft's. Here whoever needs the
// answer reads it (future.Response), and waits for it before the append is made (pipeline).
// What is to be done with a call before raft sees it is done on the goroutine that read it
// (Guard.Arrive). A message is written with one write, and encoded without reflection.
//
// It does not decide which calls raft may see, and retries nothing.
//
// Goroutines: listen accepts, from Start until Close; serve reads one connection that a
// peer opened. Calls run on their callers' own.
package carry
