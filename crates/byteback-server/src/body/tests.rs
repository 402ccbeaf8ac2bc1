use super::*;

/// The next piece of a body.
async fn next(body: &mut Body) -> Option<Result<Frame<Bytes>, axum::Error>> {
    std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

#[test]
fn paced_body_taken_too_slowly_loses_its_place() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let pace = Pace {
            idle_timeout: Duration::from_millis(300),
            bytes_per_s_min: 1 << 30,
        };
        let (mut out, mut body) = outgoing_paced(None, pace);
        let writer = tokio::task::spawn_blocking(move || {
            let written = (0..10_000).try_for_each(|_| out.write_all(&[1; CHUNK_LEN]));
            // The place is free, whatever the client does next.
            out.fail();
            written.unwrap_err().kind()
        });
        let started = Instant::now();
        while !writer.is_finished() && started.elapsed() < Duration::from_secs(20) {
            next(&mut body).await.unwrap().unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(writer.is_finished(), "it never waited so long for one piece");
        assert_eq!(writer.await.unwrap(), io::ErrorKind::TimedOut);
        // The pending rest, and no clean end.
        let end = loop {
            match next(&mut body).await {
                Some(Ok(_)) => {}
                end => break end,
            }
        };
        assert!(matches!(end, Some(Err(_))), "{end:?}");
    });
}

#[test]
fn a_paced_body_that_is_taken_comes_whole() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let pace = Pace {
            idle_timeout: Duration::from_secs(60),
            bytes_per_s_min: 1,
        };
        let (mut out, mut body) = outgoing_paced(None, pace);
        let writer = tokio::task::spawn_blocking(move || {
            (0..40).try_for_each(|_| out.write_all(&[1; CHUNK_LEN]))?;
            out.flush()
        });
        let mut len = 0;
        while let Some(piece) = next(&mut body).await {
            len += piece.unwrap().into_data().unwrap().len();
        }
        assert_eq!(len, 40 * CHUNK_LEN);
        writer.await.unwrap().unwrap();
    });
}
