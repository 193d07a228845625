// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A TCP congestion control with a window and a threshold for each of two networks that carry a connection in turn.
 *
 * The idea is that of TDTCP (S. S. Chen, W. Wang, C. Canel et al., "Time-division TCP for reconfigurable data center networks", SIGCOMM
 * 2022); the program is our own. Growth and reduction: slow start and additive increase of one segment a round trip as in RFC 5681, the
 * factor 0.7 of RFC 9438. Additive and not cubic, because a network that is there for 1/8 of the time is there for a few round trips
 * at once: a cubic curve would stay in its slow middle. Segments are paced at window / round trip of the network, or a saved window
 * would go out at once and overflow a queue of a few packets.
 *
 * Which network: map `networks`, written by its holder. The word is a lease: when it has ended, network 0 counts, so that nothing but
 * an ordinary congestion control is left when the holder died. A loss of what was sent before the change is charged to the network
 * that it was sent in.
 *
 * Declarations are those members that are used, found by name in the running kernel's BTF. `make bpf` compiles them.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef long long __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;
enum { BPF_MAP_TYPE_ARRAY = 2 };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define HERE __attribute__((preserve_access_index))
#define always static __attribute__((always_inline))
#define NEVER 0x7fffffffu
#define LEAST 2u
#define TCP_CA_CWR 2
#define TCP_CA_LOSS 4
#define SK_PACING_NEEDED 1

struct sock {
	u32 sk_pacing_status;
	unsigned long sk_pacing_rate;
} HERE;
struct inet_connection_sock {
	u8 icsk_ca_state : 5;
	u64 icsk_ca_priv[13];
} HERE;
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 snd_cwnd, snd_ssthresh, snd_una, snd_nxt, mss_cache, delivered;
	u32 packets_out, sacked_out, lost_out, retrans_out;
} HERE;
struct ack_sample {
	u32 pkts_acked;
	s32 rtt_us;
} HERE;
struct tcp_congestion_ops {
	void (*init)(struct sock *sk);
	u32 (*ssthresh)(struct sock *sk);
	void (*cong_control)(struct sock *sk, u32 ack, int flag, const void *rs);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	u32 (*min_tso_segs)(struct sock *sk);
	u32 (*undo_cwnd)(struct sock *sk);
	char name[16];
};

/* What the holder says: the network now, states in use (1: the ablation, 2), and until when (CLOCK_MONOTONIC, ns). */
struct word {
	u32 network, states;
	u64 until_ns;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct word);
} networks SEC(".maps");

struct window {
	u32 cwnd, ssthresh, prior, rtt_us, credit;
};
/* In icsk_ca_priv: 104 bytes. boundary: first byte sent in this network. */
struct state {
	struct window of[2];
	u32 now, boundary, delivered, charged;
};
_Static_assert(sizeof(struct state) <= 104, "icsk_ca_priv");

always struct state *state_of(struct sock *sk)
{
	return (struct state *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

always int before(u32 a, u32 b)
{
	return (s32)(a - b) < 0;
}

always u32 network_now(void)
{
	u32 zero = 0;
	struct word *said = bpf_map_lookup_elem(&networks, &zero);

	if (!said || said->states < 2 || said->until_ns < bpf_ktime_get_ns())
		return 0;
	return said->network & 1;
}

/* Exchange the window for that of the network that is there now. */
always void follow(struct sock *sk, struct state *s)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	u32 now = network_now();
	struct window *left, *come;

	if (now == s->now)
		return;
	left = now ? &s->of[0] : &s->of[1];
	come = now ? &s->of[1] : &s->of[0];
	left->cwnd = tp->snd_cwnd;
	left->ssthresh = tp->snd_ssthresh;
	if (!come->cwnd) { /* the first time: no better guess than what the other found */
		come->cwnd = left->cwnd;
		come->ssthresh = NEVER;
	}
	tp->snd_cwnd = come->cwnd;
	tp->snd_ssthresh = come->ssthresh;
	s->boundary = tp->snd_nxt;
	s->charged = 0;
	s->now = now;
}

always void pace(struct sock *sk, struct state *s)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct window *w = s->now ? &s->of[1] : &s->of[0];
	u32 rtt_us = w->rtt_us;
	u64 rate;

	if (!rtt_us) /* not known yet: unpaced */
		rate = ~0ull;
	else {
		rate = (u64)tp->snd_cwnd * tp->mss_cache * 1000000 / rtt_us;
		rate = tp->snd_cwnd < tp->snd_ssthresh ? rate * 2 : rate + rate / 5;
	}
	sk->sk_pacing_rate = rate;
}

SEC("struct_ops/networks_init")
void BPF_PROG(networks_init, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct state *s = state_of(sk);

	__builtin_memset(s, 0, sizeof(*s));
	s->now = network_now();
	s->boundary = tp->snd_nxt;
	s->delivered = tp->delivered;
	tp->snd_ssthresh = NEVER;
	if (!sk->sk_pacing_status)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	sk->sk_pacing_rate = ~0ul;
}

SEC("struct_ops/networks_ssthresh")
u32 BPF_PROG(networks_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct state *s = state_of(sk);
	struct window *w, *other;
	u32 less;

	follow(sk, s);
	w = s->now ? &s->of[1] : &s->of[0];
	other = s->now ? &s->of[0] : &s->of[1];
	if (other->cwnd && before(tp->snd_una, s->boundary)) {
		if (!s->charged) { /* once a change */
			less = other->cwnd * 7 / 10;
			other->prior = other->cwnd;
			other->cwnd = less < LEAST ? LEAST : less;
			other->ssthresh = other->cwnd;
			s->charged = 1;
		}
		return tp->snd_ssthresh;
	}
	less = tp->snd_cwnd * 7 / 10;
	if (less < LEAST)
		less = LEAST;
	w->prior = tp->snd_cwnd;
	w->credit = 0;
	tp->snd_cwnd = less; /* after a timeout the kernel writes it again */
	return less;
}

SEC("struct_ops/networks_acked")
void BPF_PROG(networks_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct state *s = state_of(sk);
	struct window *w;
	s32 rtt_us = sample->rtt_us;

	follow(sk, s);
	if (rtt_us <= 0 || before(tp->snd_una, s->boundary))
		return; /* of a segment sent in the other network */
	w = s->now ? &s->of[1] : &s->of[0];
	w->rtt_us = w->rtt_us ? w->rtt_us - w->rtt_us / 8 + rtt_us / 8 : rtt_us;
}

SEC("struct_ops/networks_control")
void BPF_PROG(networks_control, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct state *s = state_of(sk);
	struct window *w;
	u32 acked = tp->delivered - s->delivered, cwnd, was_out;
	u8 ca = ((struct inet_connection_sock *)sk)->icsk_ca_state;

	follow(sk, s);
	s->delivered = tp->delivered;
	w = s->now ? &s->of[1] : &s->of[0];
	cwnd = tp->snd_cwnd;
	was_out = tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out + acked;
	if ((ca < TCP_CA_CWR || ca == TCP_CA_LOSS || s->charged) && acked && was_out + cwnd / 4 + 1 >= cwnd) {
		if (cwnd < tp->snd_ssthresh) {
			u32 room = tp->snd_ssthresh - cwnd, first = acked < room ? acked : room;

			cwnd += first;
			acked -= first;
		}
		if (acked && cwnd >= tp->snd_ssthresh) {
			w->credit += acked;
			if (w->credit >= cwnd) { /* once, however much one acknowledgement covers */
				w->credit = 0;
				cwnd += 1;
			}
		}
		tp->snd_cwnd = cwnd;
	}
	pace(sk, s);
}

SEC("struct_ops/networks_undo")
u32 BPF_PROG(networks_undo, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct state *s = state_of(sk);
	struct window *w;

	follow(sk, s);
	w = s->now ? &s->of[1] : &s->of[0];
	return w->prior > tp->snd_cwnd ? w->prior : tp->snd_cwnd;
}

SEC("struct_ops/networks_segments")
u32 BPF_PROG(networks_segments, struct sock *sk)
{
	return 1;
}

SEC(".struct_ops")
struct tcp_congestion_ops networks_ops = {
	.init = (void *)networks_init,
	.ssthresh = (void *)networks_ssthresh,
	.cong_control = (void *)networks_control,
	.pkts_acked = (void *)networks_acked,
	.min_tso_segs = (void *)networks_segments,
	.undo_cwnd = (void *)networks_undo,
	.name = "NAME-PLACE-HOLD",
};

char licence[] SEC("license") = "Dual MIT/GPL";
