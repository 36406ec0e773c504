// Command serve runs the example registry: go run ./docs/examples/registry/serve 127.0.0.1:8099
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/forgeyard/forgeyard-node/docs/examples/registry"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: serve ADDRESS")
	}
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	fmt.Println("registry on", l.Addr())
	s := http.Server{Handler: &registry.Registry{}, ReadHeaderTimeout: 10 * time.Second}
	return s.Serve(l)
}
