// Command etcdpeer is etcd, and what asks it the questions of our benches. It is a module
// of its own, so that etcd is no part of the project:
//
//	etcdpeer serve ARGS…                      an etcd server
//	etcdpeer load ENDPOINTS CLIENTS OPS       lease grant and transaction, OPS of them
//	etcdpeer leader ENDPOINTS                 the endpoint that leads
//	etcdpeer probe ENDPOINTS                  after a line on stdin: time to the next grant
//
// It prints one JSON object a question.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := serve(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "etcdpeer:", err)
			os.Exit(1)
		}
		return
	}
	if err := ask(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "etcdpeer:", err)
		os.Exit(1)
	}
}

// serve runs a server as etcd's own program does, with its flags and its defaults. Only the
// window of a client's connection has no flag.
func serve(args []string) error {
	c := embed.NewConfig()
	f := flag.NewFlagSet("serve", flag.ContinueOnError)
	f.StringVar(&c.Name, "name", c.Name, "")
	f.StringVar(&c.Dir, "data-dir", "", "")
	f.StringVar(&c.InitialCluster, "initial-cluster", "", "")
	f.StringVar(&c.ClusterState, "initial-cluster-state", "", "")
	f.StringVar(&c.LogLevel, "log-level", "", "")
	f.UintVar(&c.TickMs, "heartbeat-interval", c.TickMs, "")
	f.UintVar(&c.ElectionMs, "election-timeout", c.ElectionMs, "")
	for name, to := range map[string]*[]url.URL{"listen-client-urls": &c.ListenClientUrls, "advertise-client-urls": &c.AdvertiseClientUrls,
		"listen-peer-urls": &c.ListenPeerUrls, "initial-advertise-peer-urls": &c.AdvertisePeerUrls} {
		f.Func(name, "", func(s string) error {
			u, err := url.Parse(s)
			if err == nil {
				*to = []url.URL{*u}
			}
			return err
		})
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	c.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.InitialConnWindowSize(window), grpc.InitialWindowSize(window)}
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	return <-e.Err()
}

func ask(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: etcdpeer serve|load|leader|probe …")
	}
	endpoints := strings.Split(args[1], ",")
	switch args[0] {
	case "leader":
		return leader(endpoints)
	case "probe":
		return probe(endpoints)
	case "load":
		clients, err1 := strconv.Atoi(args[2])
		ops, err2 := strconv.Atoi(args[3])
		if err1 != nil || err2 != nil {
			return fmt.Errorf("load: %q and %q are no numbers", args[2], args[3])
		}
		return load(endpoints, clients, ops)
	}
	return fmt.Errorf("there is no question %q", args[0])
}

// window is that of either side's connection. Where the library is left to find one, it
// measures the connection with a ping beside almost each message of a lone client.
const window = 1 << 20

func dial(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithInitialConnWindowSize(window), grpc.WithInitialWindowSize(window)}})
}

func answer(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }

// leaderOf is the endpoint whose member leads, and its client.
func leaderOf(endpoints []string) (string, error) {
	for _, e := range endpoints {
		c, err := dial(e)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		st, err := c.Status(ctx, e)
		cancel()
		c.Close()
		if err == nil && st.Leader == st.Header.MemberId && st.Leader != 0 {
			return e, nil
		}
	}
	return "", fmt.Errorf("nobody leads")
}

func leader(endpoints []string) error {
	e, err := leaderOf(endpoints)
	if err != nil {
		return err
	}
	return answer(map[string]string{"leader": e})
}

// grant is what a lock service does with etcd: a lease, and a key that lives with it.
func grant(ctx context.Context, c *clientv3.Client, key string) error {
	l, err := c.Grant(ctx, 60)
	if err != nil {
		return err
	}
	r, err := c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, "holder", clientv3.WithLease(l.ID))).Commit()
	if err == nil && !r.Succeeded {
		err = fmt.Errorf("%s is held", key)
	}
	return err
}

func load(endpoints []string, clients, ops int) error {
	at, err := leaderOf(endpoints)
	if err != nil {
		return err
	}
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	var mu sync.Mutex
	var took []float64
	var wg sync.WaitGroup
	errs := make(chan error, clients)
	// One connection for all: with one each, 16 clients got a third less and 128 two fifths.
	c, err := dial(at)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Get(context.Background(), "warm"); err != nil {
		return err
	}
	began := time.Now()
	for i := range clients {
		wg.Go(func() {
			for n := range ops / clients {
				t := time.Now()
				if err := grant(context.Background(), c, fmt.Sprintf("%s/%d/%d", run, i, n)); err != nil {
					errs <- err
					return
				}
				d := time.Since(t).Seconds()
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	all := time.Since(began).Seconds()
	select {
	case err := <-errs:
		return err
	default:
	}
	slices.Sort(took)
	return answer(map[string]float64{"rate": float64(len(took)) / all, "p50": took[len(took)/2], "p99": took[len(took)*99/100]})
}

// probe asks each endpoint in turn until one grants.
func probe(endpoints []string) error {
	var conns []*clientv3.Client
	for _, e := range endpoints {
		c, err := dial(e)
		if err != nil {
			return err
		}
		defer c.Close()
		conns = append(conns, c)
	}
	if err := answer(map[string]bool{"ready": true}); err != nil {
		return err
	}
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	began := time.Now()
	won := make(chan time.Duration, len(conns))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i, c := range conns {
		go func() {
			for n := 0; ctx.Err() == nil; n++ {
				try, done := context.WithTimeout(ctx, 100*time.Millisecond) // a follower holds a call for the dead leader
				err := grant(try, c, fmt.Sprintf("probe/%d/%d/%d", began.UnixNano(), i, n))
				done()
				if err == nil {
					won <- time.Since(began)
					return
				}
				time.Sleep(2 * time.Millisecond)
			}
		}()
	}
	select {
	case d := <-won:
		return answer(map[string]float64{"seconds": d.Seconds()})
	case <-ctx.Done():
		return ctx.Err()
	}
}
