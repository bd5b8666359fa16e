# Callers of an open endpoint (`graphrun serve`), for tests. usage: callers.pl URL TOKEN WAY; prints what the test looks at.
#   single N      N calls at once, each by itself: status and ids of each
#   talks N T     N conversations with names, of T turns each, taking turns: the ids of each conversation
#   lies          what is refused: lines of what was not
#   long FILE     one call; FILE is made once it is open
use strict;
use IO::Socket::INET;
my ($url, $token, $way, @more) = @ARGV;
my ($host, $port) = $url =~ m{^http://([^:/]+):(\d+)/v1$} or die "no url: $url";
main->can($way)->(@more);

sub begin { # a call that is open
    my ($at, $body, %how) = @_;
    my $s = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port) or die "cannot connect: $!";
    my $bearer = $how{token} // $token;
    print $s "POST $at HTTP/1.1\r\nHost: $host\r\nConnection: close\r\nAuthorization: Bearer $bearer\r\n",
        $how{session} ? "X-Session-ID: $how{session}\r\n" : "", "Content-Length: ", length $body, "\r\n\r\n", $body;
    return $s;
}

sub end {
    my $s = shift;
    local $/;
    my ($status, $body) = (<$s> // "") =~ m{^HTTP/1.1 (\d+)[^\n]*\n.*?\r\n\r\n(.*)$}s or return (0, "");
    return ($status, $body);
}

sub tokens { return '{"token_ids":[' . join(",", @{$_[0]}) . "],\"sampling_params\":{\"max_tokens\":$_[1]}}" }

sub ids_of { return $_[0] =~ /"token_ids":\[([0-9,]*)\]/ ? split(/,/, $1) : () }

sub single {
    my @open = map { begin("/inference/v1/generate", tokens([5, 6, 7], 8)) } 1 .. $_[0];
    for (@open) { my ($status, $body) = end($_); print "$status ", join(",", ids_of($body)), "\n" }
}

sub talks {
    my ($n, $turns) = @_;
    my @context = map { [5, 6, 7 + $_] } 0 .. $n - 1;
    for my $turn (1 .. $turns) {
        my @open = map { begin("/session/talk$_/inference/v1/generate", tokens($context[$_], 4)) } 0 .. $n - 1;
        for my $i (0 .. $n - 1) {
            my ($status, $body) = end($open[$i]);
            die "$status $body" if $status != 200;
            push @{$context[$i]}, ids_of($body), 8;
        }
    }
    print join(",", @$_), "\n" for @context;
}

sub lies {
    my $post = sub {
        my ($what, $want, $code, @call) = @_;
        my ($status, $body) = end(begin(@call));
        print "$what: $status $body\n" unless $status == $want && $body =~ /"$code"/;
    };
    my $at = "/inference/v1/generate";
    $post->("a wrong token", 401, "wrong_token", $at, tokens([5], 1), token => "no");
    $post->("a path", 404, "path", "/v1/embeddings", "{}");
    $post->("a key", 400, "request", $at, '{"token_ids":[5],"file":"/etc/passwd"}');
    $post->("too long a context", 400, "context_length_exceeded", $at, tokens([(5) x 60], 1));
    $post->("no continuation", 200, "choices", $at, tokens([5, 6], 2), session => "x");
    $post->("no continuation", 400, "not_a_continuation", $at, tokens([5, 7], 2), session => "x");
}

sub long {
    my $s = begin("/inference/v1/generate", tokens([5, 6], 40));
    my $late = begin("/inference/v1/generate", tokens([5, 6], 40), session => "late");
    open(my $f, ">", $_[0]) or die;
    close $f;
    my ($status, $body) = end($s);
    print "$status ", scalar(() = $body =~ /\d+,|\d+\]/g) > 0 ? "said" : "", "\n";
    ($status, $body) = end($late);
    print "$status\n";
}
