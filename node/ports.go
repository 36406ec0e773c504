package node

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"strconv"

	ma "github.com/multiformats/go-multiaddr"
)

// ports remembers which ports were taken for `port 0`, so that a node that comes back
// is where the others look for it. It is a convenience: with another program on the
// port, a new one is taken.
type ports struct {
	path string
	last map[string]int
	said []byte // what the file holds
}

func loadPorts(path string) *ports {
	p := &ports{path: path, last: map[string]int{}}
	b, err := os.ReadFile(path)
	if err != nil {
		return p
	}
	var was map[string]int
	if json.Unmarshal(b, &was) != nil {
		return p // damaged: ports are taken anew
	}
	p.said = b
	for name, port := range was {
		if 0 < port && port <= maxPort {
			p.last[name] = port
		}
	}
	return p
}

const maxPort = 1<<16 - 1

// sticky is the address to try first.
func (p *ports) sticky(name, addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" || p.last[name] == 0 {
		return addr
	}
	return net.JoinHostPort(host, strconv.Itoa(p.last[name]))
}

func (p *ports) keep(name string, port int) {
	if port != 0 {
		p.last[name] = port
	}
}

func (p *ports) save() error {
	b, err := json.Marshal(p.last)
	if err != nil {
		return err
	}
	if bytes.Equal(b, p.said) {
		return nil
	}
	if err := writeFile(p.path, b, 0o600); err != nil {
		return err
	}
	p.said = b
	return nil
}

// savePorts does without, where the disk takes nothing: a node that is on another port
// after its next start is worth more than none.
func (n *Node) savePorts() {
	if err := n.ports.save(); err != nil {
		n.log.Warn("the ports cannot be noted, and may be others after the next start", "err", err)
	}
}

// portOf is the TCP port of a host's listen addresses.
func portOf(all []ma.Multiaddr) int {
	for _, a := range all {
		if v, err := a.ValueForProtocol(ma.P_TCP); err == nil {
			if n, err := strconv.Atoi(v); err == nil {
				return n
			}
		}
	}
	return 0
}

func portOfAddr(addr string) int {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	return n
}
