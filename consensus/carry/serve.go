package carry

import (
	"io"
	"net"
	"time"

	"github.com/hashicorp/raft"
)

func (t *Transport) listen() {
	const least, most = 5 * time.Millisecond, time.Second
	for wait := least; ; {
		conn, err := t.cfg.Layer.Accept()
		if err == nil {
			wait = least
			go t.serve(conn)
			continue
		}
		select {
		case <-t.quit:
			return
		case <-time.After(wait):
			wait = min(2*wait, most)
		}
	}
}

// serve answers one connection's calls in their order, until it ends.
func (t *Transport) serve(conn net.Conn) {
	defer conn.Close()
	in := newReader(conn)
	var out []byte
	for {
		call, err := t.read(in)
		if err != nil {
			return // it was hung up, or speaks another language
		}
		if !t.pass(call) {
			return
		}
		select {
		case a := <-call.RespChan:
			if out, err = appendAnswer(out[:0], a); err != nil {
				return
			}
		case <-t.quit:
			return
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
		out = kept(out)
	}
}

// served is a call whose answer this side can read.
type served struct {
	raft.RPC
	RespChan chan raft.RPCResponse
}

func (t *Transport) read(in *reader) (served, error) {
	k, err := in.ReadByte()
	if err != nil {
		return served{}, err
	}
	message, err := newCall(k)
	if err == nil {
		err = in.message(message)
	}
	c := served{RespChan: make(chan raft.RPCResponse, 1)}
	c.RPC = raft.RPC{Command: message, RespChan: c.RespChan}
	if q, ok := message.(*raft.InstallSnapshotRequest); ok {
		c.Reader = io.LimitReader(in, q.Size)
	}
	return c, err
}

// pass gives a call to raft. False: the transport is closing.
func (t *Transport) pass(c served) bool {
	if q, ok := c.Command.(*raft.AppendEntriesRequest); ok && heartbeat(q) {
		if f := t.heartbeats.Load(); f != nil && *f != nil {
			(*f)(c.RPC)
			return true
		}
	}
	return t.guard.Arrive(c.RPC)
}

func appendAnswer(b []byte, a raft.RPCResponse) ([]byte, error) {
	text := ""
	if a.Error != nil {
		text = a.Error.Error()
	}
	return appendMessage(appendString(b, text), a.Response)
}
