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
	v := visit{desk: t.cfg.Desk}
	var out []byte
	for {
		call, err := t.read(in)
		if err != nil {
			return // it was hung up, or speaks another language
		}
		if v.comes(in) {
			if call.Reader != nil {
				return // its caller writes a snapshot, and reads nothing before the end of it
			}
			if out, err = appendAnswer(out[:0], raft.RPCResponse{Error: ErrRefused}, v.desk.Hello("", v.who)); err == nil {
				_, _ = conn.Write(out) // it may have hung up
			}
			return
		}
		if !t.pass(call) {
			return
		}
		select {
		case a := <-call.RespChan:
			if out, err = appendAnswer(out[:0], a, v.hello(a)); err != nil {
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

// visit is what passes at the desk on one connection that a peer opened.
type visit struct {
	desk Desk
	who  Caller // nil until it says hello
	told bool   // it has our hello
}

// comes looks at who calls, and reports that it is refused.
func (v *visit) comes(in *reader) bool {
	if v.desk == nil {
		return false
	}
	if c := in.met(v.desk); c != nil {
		v.who = c
	} else if v.told {
		v.who.Stayed()
	}
	return v.who != nil && v.who.Refused()
}

// hello is what goes with an answer: ours, once, to whoever said hello. An answer that is
// an error has no message that it could stand beside.
func (v *visit) hello(a raft.RPCResponse) []byte {
	if v.who == nil || v.told || a.Response == nil {
		return nil
	}
	h := v.desk.Hello("", v.who)
	v.told = h != nil
	return h
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

func appendAnswer(b []byte, a raft.RPCResponse, hello []byte) ([]byte, error) {
	text := ""
	if a.Error != nil {
		text = a.Error.Error()
	}
	return appendGreeting(appendString(b, text), a.Response, hello)
}
