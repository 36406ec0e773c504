package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/consensus"
	"github.com/forgeyard/forgeyard-node/internal/bench/rpc"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/clock"
	"github.com/forgeyard/forgeyard-node/internal/heap"
	"github.com/forgeyard/forgeyard-node/internal/watcher"
	"github.com/forgeyard/forgeyard-node/node/controllers"
	"github.com/forgeyard/forgeyard-node/node/leading"
	"github.com/forgeyard/forgeyard-node/node/replica"
	"github.com/forgeyard/forgeyard-node/site"
)

// A trio is three processes with what decides in a node and nothing else: the site's log
// with its stores on the disk, the site's rules, the leader's controllers, and plain TCP, as
// the peer has it. A whole node adds work that the peer does not do: it would fetch,
// sandbox and run each job that is granted here. This program starts itself as one with
//
//	FORGEYARD_BENCH_NODE='{"id":…}'
const envNode = "FORGEYARD_BENCH_NODE"

type trioNode struct {
	ID    string            `json:"id"`
	Dir   string            `json:"dir"`
	Raft  string            `json:"raft"`
	HTTP  string            `json:"http"`
	RPC   string            `json:"rpc"`
	Peers map[string]string `json:"peers"` // raft address → http address
	// HeartbeatMS is the election timeout; 0: the default.
	HeartbeatMS int `json:"heartbeat_ms"`
}

// plainTCP is a raft.StreamLayer.
type plainTCP struct{ net.Listener }

// Dial implements raft.StreamLayer.
func (plainTCP) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", string(to), timeout)
}

type trioServer struct {
	cfg     trioNode
	group   *consensus.Group
	replica *replica.Replica
	lead    *leading.Leadership
	client  *http.Client
}

// runTrioNode is the process. It ends when it is killed.
func runTrioNode(ctx context.Context, raw string) error {
	heap.Leave(heap.Room)        // as a node does
	watch, err := watcher.Find() // as well, where it may
	if err == nil {
		go watch.Run(ctx)
	}
	s := &trioServer{replica: replica.New(), client: &http.Client{}}
	s.replica.Observe(func(replica.Applied) { watch.Committed() })
	if err := json.Unmarshal([]byte(raw), &s.cfg); err != nil {
		return err
	}
	l, err := net.Listen("tcp", s.cfg.Raft)
	if err != nil {
		return err
	}
	beat := time.Duration(s.cfg.HeartbeatMS) * time.Millisecond
	s.group, err = consensus.Open(consensus.Config{
		Dir: s.cfg.Dir, LocalID: s.cfg.ID, LocalAddr: s.cfg.Raft, Layer: plainTCP{l}, FSM: s.replica, TermOf: s.termOf,
		Batches: func() bool { return true }, StateVersion: site.Encoding(), Timings: consensus.Timings{Heartbeat: beat},
	})
	if err != nil {
		return err
	}
	go s.leadAlways(ctx)
	mux := http.NewServeMux()
	for path, f := range map[string]func(*http.Request, []byte) (any, error){
		"/bootstrap": s.bootstrap, "/add": s.add, "/propose": s.propose, "/renew": s.renew, "/stat": s.stat,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { rpc.Handle(w, r, f) })
	}
	p, err := net.Listen("tcp", s.cfg.RPC)
	if err != nil {
		return err
	}
	go func() { _ = rpc.Serve(p, s.proposeBytes) }() // it ends with the process
	h, err := net.Listen("tcp", s.cfg.HTTP)
	if err != nil {
		return err
	}
	return http.Serve(h, mux)
}

// leadAlways runs the leader's controllers whenever this node leads. They find nothing to
// place, as the runner is not heard unless a bench renews.
func (s *trioServer) leadAlways(ctx context.Context) {
	stop := func() {}
	defer func() { stop() }()
	for l := range s.group.LeaderChanges() {
		stop()
		stop = func() {}
		if !l.IsLeader {
			continue
		}
		run, cancel := context.WithCancel(ctx)
		stop = cancel
		p := &replica.Proposer{Group: s.group, Self: s.cfg.Raft, Clock: clock.System(), By: "leader", NewID: func() forgeyard.MessageID {
			return forgeyard.MessageID(fmt.Sprint("l", time.Now().UnixNano()))
		}}
		s.lead = leading.New(leading.Config{Self: runnerID, Term: l.Term, Group: s.group, Replica: s.replica, Proposer: p, Clock: clock.System(),
			Log: slog.New(slog.DiscardHandler), Used: func() (time.Duration, bool) { return 0, true }})
		go s.lead.Run(run)
	}
}

func (s *trioServer) termOf(ctx context.Context, addr string) (uint64, error) {
	st, err := rpc.Post[trioStat](ctx, s.client, s.cfg.Peers[addr], "/stat", nil)
	return st.Term, err
}

func (s *trioServer) bootstrap(r *http.Request, _ []byte) (any, error) {
	return nil, s.group.Bootstrap(r.Context())
}

func (s *trioServer) add(r *http.Request, body []byte) (any, error) {
	return nil, s.group.AddVoter(r.Context(), string(body), string(body))
}

func (s *trioServer) proposeBytes(ctx context.Context, body []byte) ([]byte, error) {
	v, err := s.proposal(ctx, body)
	if err != nil {
		return nil, err
	}
	return cborx.Marshal(v), nil
}

func (s *trioServer) propose(r *http.Request, body []byte) (any, error) {
	return s.proposal(r.Context(), body)
}

func (s *trioServer) proposal(ctx context.Context, body []byte) (any, error) {
	res, err := s.group.Propose(ctx, body)
	if err != nil {
		return nil, err
	}
	reply, ok := res.Value.(site.Reply)
	if !ok {
		return nil, fmt.Errorf("entry %d has no reply", res.Index)
	}
	return reply, nil
}

// renew answers one heartbeat: the authorities that it renews.
func (s *trioServer) renew(r *http.Request, body []byte) (any, error) {
	var held []forgeyard.Authority
	if err := cborx.Unmarshal(body, &held); err != nil {
		return nil, err
	}
	batch := make([]controllers.Renewal, len(held))
	for i, a := range held {
		batch[i] = controllers.Renewal{Authority: a, Running: true}
	}
	if s.lead == nil {
		return nil, fmt.Errorf("it does not lead")
	}
	out, err := s.lead.Renew(r.Context(), runnerID, controllers.Sign{Session: sessionID}, batch)
	if err != nil {
		return nil, err
	}
	kept := 0
	for _, a := range out {
		if a.Answer == "continue" {
			kept++
		}
	}
	return kept, nil
}

type trioStat struct {
	Leads     bool   `cbor:"1,keyasint"`
	Term      uint64 `cbor:"2,keyasint"`
	LastIndex uint64 `cbor:"3,keyasint"`
}

func (s *trioServer) stat(r *http.Request, _ []byte) (any, error) {
	st := trioStat{Leads: s.group.IsLeader(), Term: s.group.Term()}
	if r.URL.Query().Has("log") {
		st.LastIndex = s.group.Stats().LastIndex
	}
	return st, nil
}

// bytesWritten is what the processes have sent to the disk.
func bytesWritten(pids []int) (n uint64, err error) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		if err != nil {
			return 0, err
		}
		for line := range bytes.Lines(b) {
			if v, ok := bytes.CutPrefix(line, []byte("write_bytes: ")); ok {
				k, err := strconv.ParseUint(string(bytes.TrimSpace(v)), 10, 64)
				if err != nil {
					return 0, err
				}
				n += k
			}
		}
	}
	return n, nil
}

// figures are what a run of operations gave.
type figures struct {
	Rate float64 `json:"rate"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
}

func figuresOf(took []float64, all time.Duration) figures {
	slices.Sort(took)
	return figures{Rate: float64(len(took)) / all.Seconds(), P50: took[len(took)/2], P99: took[len(took)*99/100]}
}
