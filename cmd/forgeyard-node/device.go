package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/internal/cli"
)

func (a *app) deviceCommand() *cobra.Command {
	g := a.Build(cli.Command{Use: "device", Aliases: []string{"devices"}, Short: "List, lease and use the site's devices"})
	g.AddCommand(a.deviceList(), a.deviceShow(), a.deviceLease(), a.deviceRelease(), a.deviceQuarantine(), a.deviceClear(), a.deviceConnect())
	return g
}

func (a *app) devices(ctx context.Context) ([]*forgeyardv1.Device, error) {
	c, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	l, err := unary(ctx, c.device.List, &forgeyardv1.ListDevicesRequest{})
	if err != nil {
		return nil, err
	}
	return l.Devices, nil
}

func (a *app) deviceList() *cobra.Command {
	return a.Build(cli.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List devices, who has them, and why one cannot be had", Example: "  forgeyard-node device list", Exits: []int{1, 5, 130},
		Run: func(ctx context.Context, _ []string) error {
			all, err := a.devices(ctx)
			if err != nil {
				return err
			}
			return cli.PrintList(a.Shell, all, func(p *cli.Page) {
				p.Row("DEVICE", "KIND", "HOST", "PRESENCE", "HEALTH", "USE", "HOLDER", "LABELS", "NOT GRANTABLE")
				for _, d := range all {
					p.Row(d.DeviceId, d.Kind, d.Host, d.Presence, d.Health, d.Use, d.Holder, cli.Labels(d.Labels), d.Reason)
				}
			})
		},
	})
}

func (a *app) deviceShow() *cobra.Command {
	return a.Build(cli.Command{
		Use: "show ID", Short: "Show one device", Args: cobra.ExactArgs(1), Example: "  forgeyard-node device show dut-1", Exits: []int{1, 3, 5, 130},
		Run: func(ctx context.Context, args []string) error {
			all, err := a.devices(ctx)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(all, func(d *forgeyardv1.Device) bool { return d.DeviceId == args[0] })
			if i < 0 {
				return forgeyard.Errorf("device", forgeyard.NotFound, "no device %q in the site", forgeyard.Clip(args[0], 60)).WithHint("`device list` shows them")
			}
			d := all[i]
			return a.Print(d, func(p *cli.Page) {
				p.Fact("device", "%s, %s on %s", d.DeviceId, d.Kind, d.Host)
				p.Fact("labels", "%s", cli.Labels(d.Labels))
				p.Fact("serial", "%s", d.Serial)
				p.Fact("presence", "%s", d.Presence)
				p.Fact("health", "%s", d.Health)
				p.Fact("use", "%s", d.Use)
				p.Fact("not grantable", "%s", d.Reason)
				if d.LeaseId != "" {
					p.Fact("lease", "%s, token %d, holder %s", d.LeaseId, d.Token, d.Holder)
				}
				p.Fact("as of", "%s", cli.Since(now(), d.AsOf))
			})
		},
	})
}

func (a *app) deviceLease() *cobra.Command {
	var req forgeyardv1.LeaseDeviceRequest
	var labels []string
	var ttl time.Duration
	c := a.Build(cli.Command{
		Use: "lease [ID]", Short: "Lease a device, by its id or by what it must be", Args: cobra.MaximumNArgs(1),
		Long:    "Lease a device, by its id or by what it must be. It prints the lease and its token; the device is reset when the lease ends.",
		Example: "  forgeyard-node device lease dut-1 --ttl 1h\n  forgeyard-node device lease --kind serial --label board=rev4", Exits: []int{1, 3, 4, 5, 130},
		Run: func(ctx context.Context, args []string) (err error) {
			if (len(args) == 1) == (req.Kind != "") {
				return a.Usage("device lease", "exactly one of ID and --kind is needed")
			}
			if ttl <= 0 {
				return a.Usage("device lease", "--ttl %s is not above 0", ttl)
			}
			if req.Labels, err = pairs("--label", labels); err != nil {
				return err
			}
			if len(args) == 1 {
				req.DeviceId = args[0]
			}
			if req.RequestId == "" {
				req.RequestId = newID() // a retry below us is the same lease
			}
			req.Ttl = durationpb.New(ttl)
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			l, err := unary(ctx, c.device.Lease, &req)
			if err != nil {
				return err
			}
			return a.Print(l, func(p *cli.Page) {
				p.Row("lease", l.LeaseId)
				p.Row("device", l.DeviceId)
				p.Row("host", l.Host)
				p.Row("token", strconv.FormatUint(l.Token, 10))
			})
		},
	})
	f := c.Flags()
	f.StringVar(&req.Kind, "kind", "", "kind of the device: serial")
	f.StringArrayVar(&labels, "label", nil, "k=v that the device must have; repeat for more")
	f.DurationVar(&ttl, "ttl", 30*time.Minute, "how long")
	f.StringVar(&req.Holder, "holder", "", "who has it (default operator)")
	f.StringVar(&req.RequestId, "request-id", "", "the same id is the same lease, however often it is asked for")
	return c
}

// deviceAction is a command that changes one thing and says so.
func (a *app) deviceAction(c cli.Command, did string, do func(context.Context, *client, string) error) *cobra.Command {
	c.Args = cobra.ExactArgs(1)
	c.Run = func(ctx context.Context, args []string) error {
		cl, err := a.connect(ctx)
		if err != nil {
			return err
		}
		if err := do(ctx, cl, args[0]); err != nil {
			return err
		}
		return a.PrintValue(map[string]any{"id": args[0], "did": did}, func(p *cli.Page) { p.Line("%s %s", did, args[0]) })
	}
	return a.Build(c)
}

func (a *app) deviceRelease() *cobra.Command {
	var force bool
	c := a.deviceAction(cli.Command{
		Use: "release LEASE", Short: "End a device lease; the device is reset before its next one", Example: "  forgeyard-node device release 01K5…", Exits: []int{1, 3, 4, 5, 130},
	}, "released", func(ctx context.Context, c *client, lease string) error {
		_, err := unary(ctx, c.device.Release, &forgeyardv1.ReleaseDeviceRequest{LeaseId: lease, Force: force})
		return err
	})
	c.Flags().BoolVar(&force, "force", false, "also when a job holds it")
	return c
}

func (a *app) deviceQuarantine() *cobra.Command {
	var reason string
	c := a.deviceAction(cli.Command{
		Use: "quarantine ID --reason R", Short: "Keep a device from being leased", Example: "  forgeyard-node device quarantine dut-1 --reason 'loose cable'", Exits: []int{1, 3, 4, 5, 130},
	}, "quarantined", func(ctx context.Context, c *client, id string) error {
		if reason == "" {
			return a.Usage("device quarantine", "--reason is missing: who clears it must know")
		}
		_, err := unary(ctx, c.device.SetHealth, &forgeyardv1.SetDeviceHealthRequest{DeviceId: id, Action: "quarantine", Reason: reason})
		return err
	})
	c.Flags().StringVar(&reason, "reason", "", "why, for who clears it")
	return c
}

func (a *app) deviceClear() *cobra.Command {
	return a.deviceAction(cli.Command{
		Use: "clear ID", Short: "End a quarantine", Example: "  forgeyard-node device clear dut-1", Exits: []int{1, 3, 4, 5, 130},
	}, "cleared", func(ctx context.Context, c *client, id string) error {
		_, err := unary(ctx, c.device.SetHealth, &forgeyardv1.SetDeviceHealthRequest{DeviceId: id, Action: "clear"})
		return err
	})
}

// endKey ends a session on a terminal, as telnet has it: Ctrl-].
const endKey = 0x1d

func (a *app) deviceConnect() *cobra.Command {
	var linger time.Duration
	c := a.Build(cli.Command{
		Use: "connect LEASE", Short: "Talk to a leased serial console; Ctrl-] ends", Args: cobra.ExactArgs(1),
		Long:    "Talk to a leased serial console, from any node. On a terminal Ctrl-] ends the session; a script's session ends --linger after its stdin.",
		Example: "  forgeyard-node device connect 01K5…\n  echo version | forgeyard-node device connect 01K5… --linger 2s", Exits: []int{1, 3, 4, 5, 6, 130},
		Run: func(ctx context.Context, args []string) error {
			c, err := a.connect(ctx)
			if err != nil {
				return err
			}
			return a.console(ctx, c, args[0], linger)
		},
	})
	c.Flags().DurationVar(&linger, "linger", time.Second, "how long to go on reading after stdin has ended")
	return c
}

func (a *app) console(ctx context.Context, c *client, lease string, linger time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := c.device.Console(ctx)
	if err := s.Send(&forgeyardv1.ConsoleData{LeaseId: lease}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	restore, err := rawTerminal(a.In)
	if err != nil {
		return forgeyard.E("device connect", forgeyard.Other, err)
	}
	defer restore()
	over := make(chan struct{}) // what we said has an end
	go func() {
		defer close(over)
		a.typed(s.Send)
	}()
	ended := make(chan error, 1)
	go func() { ended <- a.show(s.Receive) }()
	select {
	case err := <-ended:
		return err
	case <-over:
	case <-ctx.Done():
		linger = 0
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(linger):
	case <-ctx.Done():
	}
	// The transport looks at its context only when our side of the stream is closed.
	if err := s.CloseRequest(); err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(linger + time.Second):
		cancel()
		return nil // the end was ours
	}
}

// typed sends what is typed until stdin ends or the end key comes.
func (a *app) typed(send func(*forgeyardv1.ConsoleData) error) {
	terminal := cli.IsTerminal(a.In)
	buf := make([]byte, 1024)
	for {
		n, err := a.In.Read(buf)
		b := buf[:n]
		i := -1
		if terminal {
			i = slices.Index(b, endKey)
		}
		if i >= 0 {
			b = b[:i]
		}
		if len(b) > 0 && send(&forgeyardv1.ConsoleData{Data: b}) != nil {
			return // the reason is in what is received
		}
		if err != nil || i >= 0 {
			return
		}
	}
}

func (a *app) show(receive func() (*forgeyardv1.ConsoleData, error)) error {
	for {
		m, err := receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := a.Out.Write(m.Data); err != nil {
			return forgeyard.E("device connect", forgeyard.Other, err)
		}
	}
}
